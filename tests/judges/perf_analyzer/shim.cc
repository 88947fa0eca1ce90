// The symbols that perf_analyzer 2.60.0 (built with GCC 13 against glibc 2.39) needs and glibc 2.36 with
// libstdc++ 12 lacks. Preloaded by the judge that runs it; never part of the product.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ios>
#include <string>

namespace {
std::ios_base::Init init_streams;  // what ios_base_library_init would have done
}

extern "C" {

// C23 number parsing differs from the older functions only in accepting 0b prefixes.
long __isoc23_strtol(const char* s, char** end, int base) { return strtol(s, end, base); }
long long __isoc23_strtoll(const char* s, char** end, int base) { return strtoll(s, end, base); }
unsigned long __isoc23_strtoul(const char* s, char** end, int base) { return strtoul(s, end, base); }
unsigned long long __isoc23_strtoull(const char* s, char** end, int base) { return strtoull(s, end, base); }

int __isoc23_sscanf(const char* s, const char* format, ...) {
  va_list args;
  va_start(args, format);
  int count = vsscanf(s, format, args);
  va_end(args);
  return count;
}

void _ZSt21ios_base_library_initv() {}

// std::string::_M_replace_cold(position, old length, source, new length, tail length): the replacement may
// overlap the string itself, hence the copy.
void _ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE15_M_replace_coldEPcmPKcmm(
    void*, char* position, size_t old_length, const char* source, size_t new_length, size_t tail) {
  std::string copy(source, new_length);
  if (tail && old_length != new_length) memmove(position + new_length, position + old_length, tail);
  if (new_length) memcpy(position, copy.data(), new_length);
}
}
