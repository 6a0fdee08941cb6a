"""Traits of a run that its steps show: depth, micro-batches, batch, precision, distribution over ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from phantora.trace.analysis.steps import PRODUCTS
from phantora.trace.analysis.throughput import EMBEDDING, embedding, embedding_width
from phantora.trace.diff.compare import Side
from phantora.trace.diff.inventory import Amount, Operation, Transfer

# Whose calls tell how often the layers of a model ran: the first class of which both runs have backward operators.
_LAYERED = ("attention", "convolution", "normalization", "gemm", "")
_DTYPE = re.compile(r"\(?(bf16|fp16|fp32|fp64|fp8\w*|tf32)\[")
_IMAGES = re.compile(r"\w+\[(\d+),[1-4],(\d+),\d+\], \w+\[\d+,[1-4],\d+,\d+\]")
_ALL = re.compile(r"… (\d+) in all")
_TRIALS = re.compile(r", True, \w+, \w+( \w+)*$")
_TENSOR = re.compile(r"\w+\[[\d,]*\]")
_COMPILED = re.compile(r".*triton|CompiledFunction")  # of torch.compile; AOTAutograd names its operator so
_SIZES = re.compile(r"\w+\[(\d+(?:,\d+)+)\]")
_OF_WEIGHTS = re.compile(r"(?:.*::)?(?:addmm|mm|linear|.*convolution)(?:_|\b)")
_LEAST_PARAMETERS = 1 << 18  # bytes: smaller collectives carry counts, norms and flags


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of batch and model, from a run's operators."""

    dtype: str
    """Data type of most products."""
    indices: tuple[int, ...]
    """Shape of the indices of the largest embedding, or (batch, height) of images; empty if unknown."""
    table: tuple[int, int] | None
    """Rows and width of the largest embedding."""
    embeddings: float
    """Calls of the largest embedding's backward operator in a step, of a rank that has it."""
    losses: float
    """Calls of the loss's backward operator in a step, of a rank that has it."""
    triton: float
    """Share of compute in kernels that torch.compile made."""
    attention: str
    """Operator of most of attention's forward time."""
    form: str
    """Form of the optimizer: fused, for each list of parameters, or for each of them."""
    held: str
    """Type of the parameters that the optimizer changes."""
    kept: frozenset[str]
    """All such types: more than one where there are master weights."""
    trained: float
    """Number of tensors that the optimizer changes; 0 if unknown."""
    pinned: float
    """Share of pinned memory in calls that copy from the host."""
    gathered: dict[int, float]
    """Bytes of parameters gathered a step, by ranks of the group."""
    scattered: dict[int, float]
    reduced: dict[int, float]
    summed: float
    """Bytes of activations that are summed over ranks, a step."""
    spread_out: float
    """Bytes of activations that are gathered, or summed and scattered, a step."""
    channels_last: bool
    """True if most convolutions have their channels last."""
    trials: bool
    """True if convolutions ask for the fastest of all plans."""
    pipeline: bool
    """True if ranks send to each other."""

    @property
    def spread(self) -> str:
        """Distribution of the parameters."""
        if sum(self.gathered.values()) and sum(self.scattered.values()):
            return "FSDP"
        return "data parallel" if sum(self.reduced.values()) else ""


def traits(side: Side) -> Traits:
    """Reads them from the shapes of embeddings, images and products."""
    operations = side.operations
    lookup = max(
        (found for o in operations if o.name == EMBEDDING if (found := embedding(o.shape))),
        key=lambda found: prod(found[1]),
        default=None,
    )
    width = max((embedding_width(o.shape) for o in operations if o.name == EMBEDDING), default=0)
    images = next((m for o in operations if "convolution" in o.name if (m := _IMAGES.search(o.shape))), None)
    indices = tuple(lookup[1]) if lookup else (int(images[1]), int(images[2])) if images else ()
    losses: dict[str, float] = defaultdict(float)
    for o, amount in operations.items():
        if o.cls == "loss" and "backward" in o.name:
            losses[o.name] += amount.count / min(1.0, amount.share or 1.0)
    embeddings = [v for o, v in operations.items() if o.name == EMBEDDING and embedding(o.shape) == lookup]
    formats = _most(operations, lambda o: o.cls == "convolution", lambda o: o.shape.rpartition(" ")[2], calls=True)
    steps = [o for o in operations if o.part]
    whole = sum(amount.time for amount in operations.values()) or 1.0
    elements = prod(indices) * width if lookup else 0
    gathered, scattered, reduced, (spread_out, summed) = _traffic(side.transfers, elements)
    return Traits(
        dtype=_most(operations, lambda o: o.cls in PRODUCTS and not o.part, _dtype, calls=True),
        indices=indices,
        table=(lookup[0], width) if lookup else None,
        embeddings=sum(v.count for v in embeddings) / min(1.0, max((v.share for v in embeddings), default=1.0) or 1.0),
        losses=max(losses.values(), default=0.0),
        triton=sum(amount.time for o, amount in operations.items() if _COMPILED.match(o.name)) / whole,
        attention=_most(operations, lambda o: o.cls == "attention" and "backward" not in o.name, lambda o: o.name),
        form=_most(operations, lambda o: bool(o.part), lambda o: _family(o.name)),
        held=_most(operations, lambda o: bool(o.part), _dtype),
        kept=frozenset(_dtype(o) for o in steps) - {""},
        trained=_trained(steps),
        pinned=_pinned(operations),
        gathered=gathered,
        scattered=scattered,
        reduced=reduced,
        summed=summed,
        spread_out=spread_out,
        channels_last=formats == "nhwc",
        trials=any(_TRIALS.search(o.shape) for o in operations if o.name == "aten::cudnn_convolution"),
        pipeline=any(transfer.name.startswith("send") for transfer in side.transfers),
    )


def _dtype(operation: Operation) -> str:
    match = _DTYPE.match(operation.shape)
    return "tf32" if " tf32" in operation.shape else match[1] if match else ""


def _family(name: str) -> str:
    """Fused, for each list of parameters, or for each parameter; and which, if the name has it."""
    text = name.removeprefix("aten::")
    return "fused" if text.startswith("_fused") else "foreach" if text.startswith("_foreach") else "for each parameter"


def _pinned(operations: dict[Operation, Amount]) -> float:
    copied = _calls(operations, lambda o: "Memcpy HtoD" in o.shape)
    return _calls(operations, lambda o: "Memcpy HtoD (Pinned" in o.shape) / copied if copied else 0.0


def _trained(steps: list[Operation]) -> float:
    """Tensors in the longest list that an operator of the optimizer takes; 0 if none takes lists."""
    lists = (o.shape[1:].split(")", 1)[0] for o in steps if o.shape.startswith("("))
    return max((float(m[1]) if (m := _ALL.search(own)) else len(_TENSOR.findall(own)) for own in lists), default=0.0)


def _most(
    operations: dict[Operation, Amount],
    wanted: Callable[[Operation], bool],
    named: Callable[[Operation], str],
    calls: bool = False,
) -> str:
    """The name of most time (or `calls`) among the wanted."""
    sums: dict[str, float] = defaultdict(float)
    for operation, amount in operations.items():
        if wanted(operation):
            sums[named(operation)] += amount.count if calls else amount.time
    return max(sorted(sums), key=sums.__getitem__, default="")


def _calls(operations: dict[Operation, Amount], wanted: Callable[[Operation], bool]) -> float:
    return sum(amount.count for operation, amount in operations.items() if wanted(operation))


_ByRanks = dict[int, float]


def _traffic(
    transfers: dict[Transfer, Amount], elements: int
) -> tuple[_ByRanks, _ByRanks, _ByRanks, tuple[float, float]]:
    """Bytes a step by size of the group: gathered, scattered and reduced parameters; and of activations: gathered or
    scattered, summed."""
    found: tuple[_ByRanks, ...] = tuple(defaultdict(float) for _ in range(3))
    activations = [0.0, 0.0]
    kinds = {"all_gather": 0, "reduce_scatter": 1, "all_reduce": 2}
    for transfer, amount in transfers.items():
        if transfer.name in kinds and transfer.bytes >= _LEAST_PARAMETERS:
            if elements and transfer.bytes in (2 * elements, 4 * elements):
                activations[transfer.name == "all_reduce"] += amount.count * transfer.bytes
            else:
                found[kinds[transfer.name]][transfer.ranks] += amount.count * transfer.bytes
    return dict(found[0]), dict(found[1]), dict(found[2]), (activations[0], activations[1])


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Calls of b over those of a."""

    passes: float
    """Backward passes of a step."""
    micro: tuple[float, float]
    """Backward passes of a step, of each."""
    products: float
    """All of them, forward and backward."""
    forward: float
    backward: float
    layers: tuple[float, float] | None
    """Layers of one pass; None if they cannot be counted."""


def repeats(a: Side, b: Side, x: Traits, y: Traits) -> Repeats:
    """Repetitions of a model's layers, in both runs."""
    micro = 1.0, 1.0
    for pair in ((x.embeddings, y.embeddings), (x.losses, y.losses)):
        if all(pair):
            micro = pair
            break
    passes = micro[1] / micro[0]
    called = [_calls(side.operations, lambda o: o.cls in PRODUCTS and not o.part) for side in (a, b)]
    products = called[1] / called[0] if all(called) else passes
    for cls in _LAYERED:

        def counts(side: Side, backward: bool, cls: str = cls) -> float:
            return _calls(
                side.operations,
                lambda o: (
                    (o.cls == cls if cls else o.cls not in ("optimizer", "loss", "embedding", "communication"))
                    and not o.part
                    and ("backward" in o.name) == backward
                    and not o.name.startswith("aten::_foreach")
                ),
            )

        before, after = counts(a, True), counts(b, True)
        if bool(before) != bool(after) and cls:  # other operators do the same, so that no count tells the layers
            break
        if before and after:
            forward = counts(a, False), counts(b, False)
            ratio = forward[1] / forward[0] if all(forward) else after / before
            whole = cls == "attention" and not x.pipeline and not y.pipeline
            layers = (before / micro[0], after / micro[1]) if whole else None
            return Repeats(
                passes=passes, micro=micro, products=products, forward=ratio, backward=after / before, layers=layers
            )
    return Repeats(passes=passes, micro=micro, products=products, forward=1.0, backward=1.0, layers=None)


def activations(side: Side) -> set[str]:
    """Shapes that follow the batch: of products, or of all operators where there are none."""
    products = {o.shape for o in side.operations if o.cls in PRODUCTS and not o.part}
    return products or {o.shape for o in side.operations}


def products_share_sizes(a: Side, b: Side) -> bool:
    """False where no operand of a product with weights has the sizes of one of the other run: of one model, a batch or
    a division changes some operands only. True where they are unknown."""
    found = [
        {
            tuple(sorted(int(size) for size in sizes.split(",")))
            for o in side.operations
            if not o.part and _OF_WEIGHTS.match(o.name)
            for sizes in _SIZES.findall(o.shape)
        }
        for side in (a, b)
    ]
    return not all(found) or bool(found[0] & found[1])


def parameters(side: Side) -> set[str]:
    """Shapes of the optimizer's operators, or else of embedding tables: the parameters' own."""
    shapes = {o.shape for o in side.operations if o.part and "[" in o.shape}
    if not shapes:
        tables = [embedding(o.shape) for o in side.operations if o.name == EMBEDDING]
        shapes = {f"{table[0]} rows" for table in tables if table}
    return {_ALL.sub("", shape) for shape in shapes}
