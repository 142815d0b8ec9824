"""What must hold of the objects that are compiled for more than the baseline instruction set:

  wide_units_check.py NM OBJDUMP OBJECT...

They define no weak symbol, since the linker might keep that copy for the whole program, which other machines run too.
And the hot tiles of AVX-512 VNNI keep their sums in registers; OBJDUMP is "-" for builds that do not optimise, where this
is not asked.
"""

import re
import subprocess
import sys

WIDE = re.compile(r"int_linear_(avx2|avx512|avx512vnni|amx|neon|sse4)\.cc\.(o|obj)$")
# Symbol types of nm: weak, unique, vague.
WEAK = set("VvWuw")
# The tile of 8 rows and 3 panels, per format. What it may touch of the stack: nothing in its loops, a few addresses'
# worth around them.
TILE = re.compile(r"<_ZN.*(PerFeature|PerGroup)TileI\w*VnniELi8ELi3E.*>:$")
MOST_STACK_MOVES = 8


def weak_symbols(listing):
    """Defined weak symbols of nm's listing."""
    found = []
    for line in listing.splitlines():
        match = re.match(r"^[0-9a-f]+ (\w) (.*)$", line)
        if match and match.group(1) in WEAK:
            found.append(match.group(2))
    return found


def stack_moves(disassembly):
    """Per hot tile, how many instructions move a 512-bit register to or from the stack."""
    moves = {}
    tile = None
    for line in disassembly.splitlines():
        if re.match(r"^[0-9a-f]+ <", line):
            tile = line.split("<", 1)[1] if TILE.search(line) else None
            if tile:
                moves[tile] = 0
        elif tile and "%zmm" in line and re.search(r"\(%(rsp|rbp)", line):
            moves[tile] += 1
    return moves


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_the_checks():
    assert weak_symbols("0000 T a\n0010 W std::max(int, int)\n0020 t b\n") == ["std::max(int, int)"]
    tile = "0 <_ZN1_112PerGroupTileINS2_4VnniELi8ELi3ELb0ELb0EEEvPf>:\n"
    assert list(stack_moves(tile + " vmovaps %zmm1,0x40(%rsp)\n vmovaps %zmm1,(%rsi)\n").values()) == [1]


def main(nm, objdump, objects):
    check_the_checks()
    wide = [path for path in objects if WIDE.search(path)]
    if not wide:
        sys.exit("no object of a wide instruction set among the arguments")
    errors = []
    for path in wide:
        for symbol in weak_symbols(output(nm, "-C", "--defined-only", path)):
            errors.append(f"{path} defines the weak symbol {symbol}")
    hot = [path for path in wide if "avx512vnni" in path and objdump != "-"]
    for path in hot:
        tiles = stack_moves(output(objdump, "-d", "--no-show-raw-insn", path))
        if "x86-64" in output(objdump, "-f", path) and len(tiles) != 5:
            errors.append(f"{path} has {len(tiles)} tiles of 8 rows, expected 5")
        for tile, moves in tiles.items():
            if moves > MOST_STACK_MOVES:
                errors.append(f"{tile} moves {moves} registers to or from the stack, at most {MOST_STACK_MOVES}")
    print("\n".join(errors) or f"{len(wide)} objects without weak symbols")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
