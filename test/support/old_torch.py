"""Defines the names that transformers 4.54 imports from PyTorch, and that Debian's PyTorch 1.13 lacks.

Of the names, only those with a body are used here. scripts/install_deps.sh puts this file next to transformers in
.deps, to be imported first. With a newer PyTorch it does nothing.
"""

import importlib.metadata
import sys
import types

import torch
import torch.distributed


def module(name, **names):
    made = types.ModuleType(name)
    made.__dict__.update(names)
    sys.modules[name] = made
    return made


def named(*names):
    return {name: type(name, (), {}) for name in names}


def undecorated(function=None, **_):
    return function or (lambda later: later)


if not hasattr(torch, "compiler"):
    module("torch.distributed.tensor", **named("DTensor", "Placement", "Replicate", "Shard"))
    module("torch.distributed.device_mesh", **named("DeviceMesh"))
    torch.distributed.fsdp = module("torch.distributed.fsdp", **named("FullyShardedDataParallel"))
    torch.compiler = module("torch.compiler", disable=undecorated, is_compiling=lambda: False)
    torch._dynamo = module("torch._dynamo", allow_in_graph=undecorated)
    for name, kind in named("float8_e4m3fn", "float8_e5m2").items():
        setattr(torch, name, kind)

    # transformers refuses versions below 2.1.
    version_of = importlib.metadata.version
    importlib.metadata.version = lambda package: "2.1.0" if package == "torch" else version_of(package)

    def vmap(function, in_dims, out_dims=0):
        """Maps over the first dimension of the arguments with a 0 in `in_dims`. Attention's mask needs it."""
        def mapped(*arguments):
            length = max(len(value) for value, place in zip(arguments, in_dims) if place == 0)
            rows = ([value if place is None else value[n] for value, place in zip(arguments, in_dims)]
                    for n in range(length))
            return torch.stack([function(*row) for row in rows])

        return mapped

    torch.vmap = vmap

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        seen = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for before, owner in modules:
            for name, parameter in owner._parameters.items():
                if parameter is None or (remove_duplicate and parameter in seen):
                    continue
                seen.add(parameter)
                yield f"{before}.{name}" if before else name, parameter

    torch.nn.Module.named_parameters = named_parameters

    load_values = torch.nn.Module.load_state_dict

    def load_state_dict(self, values, strict=True, assign=False):
        if not assign:
            return load_values(self, values, strict)
        for name, value in values.items():
            owner, _, last = name.rpartition(".")
            places = self.get_submodule(owner)
            if last in places._parameters:
                places._parameters[last] = torch.nn.Parameter(value)
            elif last in places._buffers:
                places._buffers[last] = value
        return None

    torch.nn.Module.load_state_dict = load_state_dict
