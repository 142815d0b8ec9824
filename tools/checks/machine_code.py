"""Counts the instructions per loop iteration in the listing of `cuobjdump -sass`, by class.

Control flow comes from the branches of the listing. Loops are natural loops (a back edge to a block that dominates it),
so code that ptxas moved to the end of a kernel belongs to its loop. An iteration is a path from a loop's head to its
back edge. The path with the most work is counted, and among equals the shortest. Work is loads from global memory and products, which
are tensor core instructions or multiply-adds. The path with the most work processes a tile of keys that is neither masked
nor the last one of its thread block.
"""

import collections
import dataclasses
import re

FUNCTION = re.compile(r"Function : (\S+)")
ARCHITECTURE = re.compile(r"code for (sm_\w+)")
LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
INSTRUCTION = re.compile(r"(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*)")
ADDRESS = re.compile(r"0x([0-9a-f]+)")
CLASSES = {
    "tensor": "HMMA IMMA DMMA HGMMA IGMMA QGMMA",
    # Instructions that use the data path of shared memory.
    "shared": "LDS LDSM STS STSM ATOMS SHFL MOVM",
    "global": "LDG LDGSTS STG LD ST ATOM ATOMG RED UTMALDG UBLKCP UTMASTG UTMAPF CCTL",
    "float": "FADD FMUL FFMA FMNMX FSETP FSEL FSET FCHK MUFU HADD2 HMUL2 HFMA2 HSETP2 HSET2 HMNMX2 F2FP F2F F2I I2F "
             "I2FP FADD2 FMUL2 FFMA2 DADD DMUL DFMA DSETP FRND",
    "integer": "IMAD IADD IADD3 IABS ISETP IMNMX VIMNMX VIADD VIADDMNMX LOP3 LOP PLOP3 PRMT SHF SHL SHR SEL SGXT MOV LEA "
               "BMSK BREV FLO POPC R2P P2R S2R S2UR CS2R R2UR LDC LDCU UMOV UIMAD UIADD3 ULOP3 UPLOP3 UPRMT USHF USEL "
               "ULEA ULDC UISETP USGXT UFLO UPOPC VOTE VOTEU REDUX IDP IDP4A MATCH UP2UR UR2UP UBMSK UIMNMX R2B B2R "
               "UF2FP UIADD UVIADD VABSDIFF",
    "control": "BRA BRX BRXU JMP JMX EXIT RET CALL BSSY BSYNC BREAK BMOV BAR SYNCS WARPSYNC WARPGROUP DEPBAR LDGDEPBAR "
               "LDTDEPBAR ARRIVES FENCE MEMBAR ERRBAR NOP YIELD NANOSLEEP ELECT ACQBULK PREEXIT USETMAXREG UCGABAR CGAERRBAR "
               "UTMACMDFLUSH UTMACCTL BPT",
}
CLASS_OF = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes.split()}


@dataclasses.dataclass
class Work:
    products: set  # opcodes
    loads: set


class CodeError(Exception):
    """The listing has something that this parser does not know."""


@dataclasses.dataclass
class Instruction:
    address: int
    guard: str
    opcode: str  # without modifiers
    operands: str

    def is_unconditional(self):
        return self.guard.strip() in ("", "@PT", "@UPT")

    def target(self):
        found = ADDRESS.findall(self.operands)
        if not found:
            raise CodeError(f"{self.opcode} at {self.address:#x} has no target address")
        return int(found[-1], 16)


def functions(listing):
    """Returns {(mangled name, architecture): [Instruction]} of a listing."""
    result, architecture, code = {}, None, None
    for line in listing.splitlines():
        if match := ARCHITECTURE.search(line):
            architecture, code = match[1], None
        elif match := FUNCTION.search(line):
            code = result[match[1], architecture] = []
        elif code is not None and (match := LINE.match(line)):
            parts = INSTRUCTION.match(match[2])
            if not parts:
                raise CodeError(f"{match[2]!r} is not an instruction")
            guard, opcode, operands = parts.groups()
            code.append(Instruction(int(match[1], 16), guard or "", opcode.split(".")[0], operands))
    return result


@dataclasses.dataclass
class Loop:
    head: int
    body: set


class Graph:
    """Basic blocks of a kernel, their successors and its loops. Blocks are named by their index."""

    def __init__(self, code):
        if not code:
            raise CodeError("a function without instructions")
        self.code = code
        starts = {code[0].address}
        for here, after in zip(code, code[1:]):
            if here.opcode in ("BRA", "JMP", "EXIT", "RET", "BSYNC", "BRX", "JMX"):
                starts.add(after.address)
            if here.opcode in ("BRA", "JMP", "BSSY"):
                starts.add(here.target())
        order = sorted(starts)
        self.index = {address: i for i, address in enumerate(order)}
        self.blocks = [[] for _ in order]
        at = -1
        for instruction in code:
            if instruction.address in self.index:
                at = self.index[instruction.address]
            self.blocks[at].append(instruction)
        self.next = self.successors()
        self.order = self.reverse_postorder(0, self.next, has_cycles=True)
        self.loops = self.natural_loops()

    def successors(self):
        """Returns the successors of each block. A BSYNC continues at the target of the BSSY that reaches it."""
        edges = [set() for _ in self.blocks]
        reach = [collections.defaultdict(set) for _ in self.blocks]
        todo = [0]
        seen = {0}
        while todo:
            block = todo.pop()
            barriers = {name: set(targets) for name, targets in reach[block].items()}
            for instruction in self.blocks[block]:
                if instruction.opcode == "BSSY":
                    barriers[instruction.operands.split(",")[0]] = {instruction.target()}
            last = self.blocks[block][-1]
            for target in self.targets(block, last, barriers):
                edges[block].add(target)
                grown = target not in seen
                for name, targets in barriers.items():
                    grown = grown or not targets <= reach[target][name]
                    reach[target][name] |= targets
                if grown:
                    seen.add(target)
                    todo.append(target)
        return edges

    def targets(self, block, last, barriers):
        after = [block + 1] if block + 1 < len(self.blocks) else []
        if last.opcode in ("BRX", "JMX", "BRXU"):
            raise CodeError(f"{last.opcode} at {last.address:#x}, a jump through a table")
        if last.opcode in ("EXIT", "RET"):
            return [] if last.is_unconditional() else after
        if last.opcode in ("BRA", "JMP"):
            taken = [self.index[last.target()]]
            is_plain = last.is_unconditional() and last.operands.strip().startswith("0x")
            return taken if is_plain else taken + after
        if last.opcode == "BSYNC":
            taken = [self.index[target] for target in barriers.get(last.operands.strip(), ())]
            return taken if last.is_unconditional() and taken else taken + after
        return after

    def reverse_postorder(self, start, edges, has_cycles):
        """Returns the blocks that `edges` reach from `start`. Raises CodeError for a cycle if has_cycles is false."""
        order, is_open, stack = [], {start: True}, [(start, iter(sorted(edges[start])))]
        while stack:
            block, rest = stack[-1]
            for follower in rest:
                if is_open.get(follower) and not has_cycles:
                    raise CodeError(f"a loop with two heads at {self.blocks[follower][0].address:#x}")
                if follower not in is_open:
                    is_open[follower] = True
                    stack.append((follower, iter(sorted(edges[follower]))))
                    break
            else:
                is_open[block] = False
                order.append(block)
                stack.pop()
        return order[::-1]

    def natural_loops(self):
        place = {block: i for i, block in enumerate(self.order)}
        before = collections.defaultdict(set)
        for block in self.order:
            for follower in self.next[block]:
                before[follower].add(block)
        dominator = {0: 0}
        changed = True
        while changed:
            changed = False
            for block in self.order[1:]:
                known = [b for b in before[block] if b in dominator]
                new = known[0]
                for other in known[1:]:
                    while new != other:
                        while place[new] > place[other]:
                            new = dominator[new]
                        while place[other] > place[new]:
                            other = dominator[other]
                if dominator.get(block) != new:
                    dominator[block] = new
                    changed = True

        def dominates(a, b):
            while place[b] > place[a]:
                b = dominator[b]
            return a == b

        bodies = {}
        for block in self.order:
            for head in self.next[block]:
                if not dominates(head, block):
                    continue
                body = bodies.setdefault(head, {head})
                todo = [block]
                while todo:
                    member = todo.pop()
                    if member not in body:
                        body.add(member)
                        todo.extend(before[member])
        return [Loop(head, body) for head, body in bodies.items()]

    def inside(self, loop):
        """Returns the loops directly inside `loop`."""
        inner = [other for other in self.loops if other.head != loop.head and other.body < loop.body]
        return [a for a in inner if not any(a is not b and a.body < b.body for b in inner)]

    def count(self, loop, opcodes):
        """Returns the number of instructions in the loop that have one of these opcodes."""
        return sum(i.opcode in opcodes for block in loop.body for i in self.blocks[block])

    def iteration(self, loop, work, trips=1, loads=None):
        """Returns the Counter of opcodes of one iteration: the shortest path with the most products and with `loads`
        loads. If `loads` is None, uses the largest number of loads on a path with the most products. Counts `trips`
        iterations of inner loops with products, and one iteration of other inner loops."""
        paths = self.paths(loop, work, trips)
        most = max(products for products, _ in paths)
        counts = [count for products, count in paths if products == most]
        if loads is None:
            loads = max(counts)
        if loads not in counts:
            raise CodeError(f"no iteration has {loads} loads; iterations have {sorted(counts)}")
        return paths[most, loads]

    def paths(self, loop, work, trips):
        """Returns {(products, loads): Counter of the shortest such path from the loop's head to its back edge}."""
        inner = self.inside(loop)
        name_of = {block: other.head for other in inner for block in other.body}
        weights = {block: collections.Counter(i.opcode for i in self.blocks[block])
                   for block in loop.body - set(name_of)}
        for other in inner:
            one = self.iteration(other, work)
            count = trips if one.keys() & work.products else 1
            weights[other.head] = collections.Counter({opcode: n * count for opcode, n in one.items()})
        edges = collections.defaultdict(set)
        ends = set()
        for block in loop.body:
            here = name_of.get(block, block)
            for follower in self.next[block] & loop.body:
                there = name_of.get(follower, follower)
                if follower == loop.head:
                    ends.add(here)
                elif here != there:
                    edges[here].add(there)
        best = collections.defaultdict(dict)
        result = {}
        keep_shortest(best[loop.head], weights[loop.head], work)
        for block in self.reverse_postorder(loop.head, edges, has_cycles=False):
            for path in best[block].values():
                if block in ends:
                    keep_shortest(result, path, work)
                for follower in edges[block]:
                    keep_shortest(best[follower], path + weights[follower], work)
        return result


def keep_shortest(paths, path, work):
    """Stores `path` in {(products, loads): path} unless a shorter one exists."""
    key = tuple(sum(path[opcode] for opcode in opcodes) for opcodes in (work.products, work.loads))
    if key not in paths or sum(path.values()) < sum(paths[key].values()):
        paths[key] = path


def work_loop(graph):
    """Returns the innermost loop with the most products and its Work. Among equal loops, returns the shortest. Products are
    tensor core instructions, or multiply-adds if the kernel has none. Loads are asynchronous copies to shared memory, or
    all loads if there are none. Returns None for a kernel without products in a loop."""
    for products in (set(CLASSES["tensor"].split()), {"FFMA"}):
        # MUFU computes reciprocals. A loop with FFMA and MUFU divides, so it is no loop of products.
        other = {"MUFU"} if "FFMA" in products else set()
        found = [loop for loop in graph.loops if graph.count(loop, products) and not graph.count(loop, other)]
        innermost = [a for a in found if not any(b is not a and b.body < a.body for b in found)]
        if not innermost:
            continue
        loop = min(innermost, key=lambda a: (-graph.count(a, products), sum(len(graph.blocks[b]) for b in a.body)))
        # The loop that loads a tile may contain a loop with the tile's products. Then the outer one is counted.
        around = [a for a in found if a is not loop and loop.body < a.body]
        copies = {"LDGSTS", "UTMALDG", "UBLKCP"}
        tile = min(around, key=lambda a: len(a.body), default=None)
        if tile is not None and graph.count(tile, copies) and not graph.count(loop, copies | {"LDG", "SYNCS"}):
            loop = tile
        return loop, Work(products, copies if graph.count(loop, copies) else {"LDG"})
    return None


def loop_without_products(graph, opcode):
    """For warps that compute no products, returns their loop over tiles and its Work. It is the loop around the innermost
    loop with the most `opcode`, or that innermost loop if no loop is around it. Returns None if no loop has `opcode`."""
    found = [loop for loop in graph.loops
             if graph.count(loop, {opcode}) and not graph.count(loop, set(CLASSES["tensor"].split()))]
    innermost = [a for a in found if not any(b is not a and b.body < a.body for b in found)]
    if not innermost:
        return None
    part = max(innermost, key=lambda a: graph.count(a, {opcode}))
    around = [a for a in found if part.body < a.body]
    return min(around, key=lambda a: len(a.body), default=part), Work({opcode}, {"LDG", "UTMALDG"})


def by_class(counter):
    """Returns {class: number of instructions}, with the total under "all". Raises CodeError for an instruction without a class."""
    counts = dict.fromkeys(CLASSES, 0)
    for opcode, count in counter.items():
        if opcode not in CLASS_OF:
            raise CodeError(f"{opcode} is in no class of tools/checks/machine_code.py")
        counts[CLASS_OF[opcode]] += count
    return {"all": sum(counts.values()), **{name: count for name, count in counts.items() if count}}
