"""Signed notes, verifier keys, checkpoints."""

from __future__ import annotations

import base64

from generator.keys import ORIGIN, Case, key
from generator.merkle import many

from pellucid.core import note
from pellucid.core.checkpoint import Checkpoint, format_checkpoint, sign_checkpoint
from pellucid.core.merkle.hashing import root_of
from pellucid.core.signature import raw_ed25519


def note_cases() -> list[Case]:
    log, other = key("log"), key("other")
    vkeys = {
        name: note.format_vkey(owner, 1, raw_ed25519(signer.public_pem()))
        for name, owner, signer in (("log", ORIGIN, log), ("other", "other.example/w", other))
    }
    text = "One line.\n\nAnother, after a blank one: é.\n"
    raw = note.sign_note(text, ORIGIN, log)
    second = note.sign_note(text, "other.example/w", other).rpartition(b"\n\n")[2]
    line = raw.rpartition(b"\n\n")[2]
    bad_line = second[:-10] + b"AAAAAAAA" + second[-2:]
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    loose = raw[:-3] + alphabet[alphabet.index(raw[-3]) + 1 :][:1] + raw[-2:]  # spare bits set, same bytes
    only = [vkeys["log"]]
    cases = [
        open_case("open", raw, only, text, [ORIGIN]),
        open_case("open_unknown_line_ignored", raw + second, only, text, [ORIGIN]),
        open_case("open_two_known", raw + second, list(vkeys.values()), text, [ORIGIN, "other.example/w"]),
        open_case("open_unknown_key_fail", raw, [vkeys["other"]]),
        open_case("open_text_changed_fail", raw.replace(b"One", b"Two"), only),
        open_case("open_bad_known_line_fail", raw + bad_line, list(vkeys.values())),
        open_case("open_same_key_twice_fail", raw + line, only),
        open_case("open_no_signature_fail", text.encode() + b"\n", only),
        open_case("open_no_blank_line_fail", text.encode().replace(b"\n\n", b"\n") + line, only),
        open_case("open_no_final_newline_fail", raw[:-1], only),
        open_case("open_carriage_return_fail", raw.replace(b".\n", b".\r\n"), only),
        open_case("open_hyphen_for_dash_fail", raw.replace("—".encode(), b"-"), only),
        open_case("open_loose_base64_fail", loose, only),
        open_case("open_65_lines_fail", raw + second * 64, only),
        open_case("open_not_utf8_fail", raw.replace("é".encode(), b"\xe9"), only),
    ]
    good = vkeys["log"]
    for name, text_ in {
        "vkey": good,
        "vkey_wrong_id_fail": good.replace("+", "+0", 1)[: len(ORIGIN) + 9] + good[len(ORIGIN) + 9 :],
        "vkey_name_with_space_fail": good.replace("vectors", "vec tors"),
        "vkey_cut_fail": good[:-4],
        "vkey_other_type_fail": good.replace("+AQ", "+Ag"),
    }.items():
        case: Case = {"name": name, "operation": "vkey", "vkey": text_}
        if not name.endswith("_fail"):
            parsed = note.parse_vkey(text_)
            case["expected"] = {
                "name": parsed.name,
                "key_id": parsed.key_id.hex(),
                "public": parsed.public.hex(),
            }
        cases.append(case)
    return cases


def open_case(
    name: str, raw: bytes, vkeys: list[str], text: str = "", names: list[str] | None = None
) -> Case:
    case: Case = {"name": name, "operation": "open", "note_hex": raw.hex(), "vkeys": vkeys}
    if names:
        case["expected"] = {"text": text, "names": names}
    return case


def checkpoint_cases() -> list[Case]:
    signer = key("log")
    vkey = note.format_vkey(ORIGIN, 1, raw_ed25519(signer.public_pem()))
    head = Checkpoint(ORIGIN, 257, root_of(many(257)))
    empty = Checkpoint(ORIGIN, 0, root_of([]))
    raw, text = sign_checkpoint(head, signer), format_checkpoint(head)

    def signed(changed: str) -> bytes:
        return note.sign_note(changed, ORIGIN, signer)

    cases = [
        checkpoint_case("checkpoint", raw, vkey, head),
        checkpoint_case("checkpoint_empty_tree", sign_checkpoint(empty, signer), vkey, empty),
    ]
    lines = text.split("\n")
    wrong = {
        "size_changed": raw.replace(b"\n257\n", b"\n258\n"),
        "root_changed": raw.replace(lines[2].encode(), base64.b64encode(bytes(32))),
        "other_origin": signed(text.replace(ORIGIN, "other.example/log")),
        "extension_line": signed(text + "extension\n"),
        "padded_size": signed(text.replace("\n257\n", "\n0257\n")),
        "signed_size": signed(text.replace("\n257\n", "\n+257\n")),
        "short_root": signed(text.replace(lines[2], base64.b64encode(bytes(31)).decode())),
        "size_beyond": signed(text.replace("\n257\n", f"\n{2**53}\n")),
        "two_lines": signed("\n".join(lines[:2]) + "\n"),
        "empty_tree_other_root": signed(text.replace("\n257\n", "\n0\n")),
    }
    return cases + [checkpoint_case(f"checkpoint_{what}_fail", bad, vkey) for what, bad in wrong.items()]


def checkpoint_case(name: str, raw: bytes, vkey: str, head: Checkpoint | None = None) -> Case:
    case: Case = {"name": name, "operation": "verify", "note_hex": raw.hex(), "vkey": vkey}
    if head:
        case["expected"] = {"origin": head.origin, "size": head.size, "root": head.root.hex()}
    return case
