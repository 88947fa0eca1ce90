/* Nine entry points that TensorRT's Python modules look for when they are imported, none of which does
 * anything: enough to read the names and signatures of a module where its libraries are not. */
#define NOTHING(name) void *name(void) { return 0; }
NOTHING(createInferBuilder_INTERNAL)
NOTHING(createInferRefitter_INTERNAL)
NOTHING(createInferRuntime_INTERNAL)
NOTHING(createNvOnnxParser_INTERNAL)
NOTHING(createNvOnnxParserRefitter_INTERNAL)
NOTHING(getBuilderPluginRegistry)
NOTHING(getPluginRegistry)
int getNvOnnxParserVersion(void) { return 0; }
int initLibNvInferPlugins(void) { return 0; }
