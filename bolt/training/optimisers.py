"""PyTorch's optimisers without its compiler.

The first optimiser of ``torch.optim`` imports ``torch._dynamo``, in case somebody compiles the steps. Nothing here is
compiled, and the import takes 1.1 s and 150 MiB of every process that trains.
"""

import inspect
from typing import TypeVar, cast

import torch

Kind = TypeVar("Kind", bound=type[torch.optim.Optimizer])


def _plain(kind: Kind) -> Kind:
    """Return the class with its own methods, without what PyTorch wraps around them for the compiler."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "state_dict", "zero_grad")}
    methods["load_state_dict"] = inspect.unwrap(kind.load_state_dict)
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return cast("Kind", type(kind.__name__, (kind,), methods))


Adam, AdamW, SGD = _plain(torch.optim.Adam), _plain(torch.optim.AdamW), _plain(torch.optim.SGD)
