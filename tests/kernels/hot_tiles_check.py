"""Checks that the compiler keeps the sums of the hot AVX-512 VNNI tiles in registers. Spilling halves their speed.

  hot_tiles_check.py OBJDUMP OBJECT...
"""

import re
import subprocess
import sys

UNIT = re.compile(r"int_linear_avx512vnni\.cc\.o$")
# The tiles of many rows and 3 panels, one per format: 8 rows with one scale per feature, 4 with groups.
TILE = re.compile(r"<(_ZN.*(PerFeatureTileI\w*VnniELi8|PerGroupTileI\w*VnniELi4)ELi3E.*)>:$")
TILES = 5
# No spills in the loops, and a few around them.
MOST_STACK_MOVES = 8


def stack_moves(disassembly):
    """Returns, per hot tile, the number of instructions that move a 512-bit register to or from the stack."""
    moves = {}
    tile = None
    for line in disassembly.splitlines():
        if re.match(r"^[0-9a-f]+ <", line):
            match = TILE.search(line)
            tile = match and match.group(1)
            if tile:
                moves[tile] = 0
        elif tile and "%zmm" in line and re.search(r"\(%(rsp|rbp)", line):
            moves[tile] += 1
    return moves


def check_the_check():
    tile = "0 <_ZN1_112PerGroupTileINS2_4VnniELi4ELi3ELb0ELb0EEEvPf>:\n"
    moves = stack_moves(tile + " vmovaps %zmm1,0x40(%rsp)\n vmovaps %zmm1,(%rsi)\n")
    assert list(moves.values()) == [1], moves


def main(objdump, objects):
    check_the_check()
    units = [path for path in objects if UNIT.search(path)]
    assert len(units) == 1, f"{len(units)} objects of AVX-512 VNNI among the arguments"
    listing = subprocess.run([objdump, "-d", "--no-show-raw-insn", *units], check=True, capture_output=True, text=True)
    tiles = stack_moves(listing.stdout)
    errors = [f"{tile} moves {moves} registers to or from the stack, at most {MOST_STACK_MOVES}"
              for tile, moves in tiles.items() if moves > MOST_STACK_MOVES]
    if len(tiles) != TILES:
        errors.append(f"{units[0]} has {len(tiles)} hot tiles, expected {TILES}")
    print("\n".join(errors) or f"{len(tiles)} tiles, stack moves {sorted(tiles.values())}")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
