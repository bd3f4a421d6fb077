"""Modules as PyTorch keeps them: parameters and parts in dictionaries of their own."""

import torch


class Module:
    def __init__(self):
        self.__dict__.update(_parameters={}, _buffers={}, _modules={}, training=True)

    def __setattr__(self, name, value):
        if isinstance(value, torch.Parameter):
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._modules[name] = value
        else:
            self.__dict__[name] = value

    def __getattr__(self, name):
        for kept in (self._parameters, self._buffers, self._modules):
            if name in kept:
                return kept[name]
        raise AttributeError(name)


class Linear(Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = torch.zeros(outputs, inputs, cls=torch.Parameter)
