"""Any Python script as a run: its modules are named once torch is there, and those of pipelines by their components."""

import functools
import importlib.abc
import importlib.util
import sys
import weakref

from ..files import STEPPED

OUTSIDE = ("torch.", "gomflux_reference.")


def watch(session):
    """Has the modules of a script watched as soon as it imports torch."""
    AfterImport("torch", lambda: Modules(session))
    watch_loading(session)


def watch_loading(session):
    """Reports which component of a pipeline is being loaded."""

    def patch():
        utils = sys.modules["diffusers.pipelines.pipeline_utils"]
        load, whole = utils.load_sub_model, utils.DiffusionPipeline.from_pretrained.__func__

        @functools.wraps(load)
        def load_sub_model(*args, **kwargs):
            name = kwargs.get("name")
            session.loading(f"the {name}" if name else "the model")
            return load(*args, **kwargs)

        @functools.wraps(whole)
        def from_pretrained(cls, *args, **kwargs):
            session.loading("the model")
            try:
                return whole(cls, *args, **kwargs)
            finally:
                if session.command[0] != "dump":
                    session.loaded()

        utils.load_sub_model = load_sub_model
        utils.DiffusionPipeline.from_pretrained = classmethod(from_pretrained)

    AfterImport("diffusers.pipelines.pipeline_utils", patch)


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once a module has been imported."""

    def __init__(self, name: str, function):
        self.name, self.function = name, function
        if name in sys.modules:
            function()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                self.function()

            spec.loader.exec_module = exec_module
        return spec


class Modules:
    """Watches every call of a module, through the hooks that PyTorch has for all modules."""

    def __init__(self, session):
        import torch

        from ..record import Recorder

        self.record, self.kind = Recorder(None, [], keep=False), torch.nn.Module
        self.known = weakref.WeakKeyDictionary()  # module -> its name, and the recorder's hooks for it
        self.components = weakref.WeakValueDictionary()  # the outermost modules, by name
        self.schedulers = weakref.WeakSet()
        everywhere = torch.nn.modules.module
        everywhere.register_module_forward_pre_hook(self._before)
        everywhere.register_module_forward_hook(self._after, always_call=True)
        AfterImport("diffusers.pipelines.pipeline_utils", self._watch_pipelines)

    def _before(self, module, args):
        if self.record.paused:
            return None
        if module not in self.known:
            self._name(module)
        kwargs = sys._getframe(1).f_locals.get("kwargs") or {}  # which such a hook does not get
        self.known[module][1](module, args, kwargs)
        return None

    def _after(self, module, args, output):
        record = self.record
        if record.paused or not any(m is module for m in record.modules):
            return None
        while record.modules[-1] is not module:  # an error has ended their calls
            record.modules.pop()
            record.running.pop()
            record.debugger.calls.pop()
        new = self.known[module][2](module, args, output)
        return None if new is output else new

    def _name(self, module):
        """Names a module that is called for the first time, and those inside it."""
        if self.record.modules:
            parent = self.record.modules[-1]
            path = next((path for path, m in parent.named_modules() if m is module), None)
            if path:
                name = self.known[parent][0]
                return self._watch(name.partition(".")[0], f"{name}.{path}", module)
        self.watch(variable_of(module) or type(module).__name__, module)

    def watch(self, name: str, module):
        """Watches a component. A name that another one has gets a number."""
        n, component = 1, name
        while self.components.get(component, module) is not module:
            n += 1
            component = f"{name}_{n}"
        self.components[component] = module
        self._watch(component, component, module)

    def _watch(self, component: str, name: str, module):
        stepped = component in STEPPED and bool(self.schedulers)
        for path, m in module.named_modules():
            full = f"{name}.{path}" if path else name
            self.known[m] = full, self.record.before(component, full, stepped), self.record.after(component, full, stepped)

    def _watch_pipelines(self):
        cls = sys.modules["diffusers.pipelines.pipeline_utils"].DiffusionPipeline
        plain = cls.__setattr__

        def __setattr__(pipe, name, value):
            plain(pipe, name, value)
            if name == "scheduler" and hasattr(value, "step") and value not in self.schedulers:
                self._watch_scheduler(value)
                for stepped in STEPPED:  # those that were there before
                    if stepped in self.components:
                        self._watch(stepped, stepped, self.components[stepped])
            elif isinstance(value, self.kind):
                self.watch(name, value)

        cls.__setattr__ = __setattr__

    def _watch_scheduler(self, scheduler):
        """Counts the steps of a scheduler, and sees its predictions and latents."""
        self.schedulers.add(scheduler)
        record, set_timesteps, step = self.record, scheduler.set_timesteps, scheduler.step

        def passed(name, tensor):
            tensor = record.replaced(name, tensor)
            record.put(name, tensor)
            return tensor

        @functools.wraps(set_timesteps)
        def observed_set_timesteps(*args, **kwargs):
            set_timesteps(*args, **kwargs)
            record.step = 0
            record.calls.clear()
            record.debugger.begin_again()
            for name in ("sigmas", "timesteps"):
                if getattr(scheduler, name, None) is not None:
                    record.put(name, getattr(scheduler, name))

        @functools.wraps(step)
        def observed_step(prediction, *args, **kwargs):
            result = step(passed(f"noise_pred@{record.step}", prediction), *args, **kwargs)
            latents = passed(f"latents@{record.step}", result[0])
            record.next_step()
            if latents is result[0]:
                return result
            if isinstance(result, tuple):
                return (latents, *result[1:])
            result.prev_sample = latents
            return result

        scheduler.set_timesteps, scheduler.step = observed_set_timesteps, observed_step


def variable_of(module) -> str:
    """The name of the variable or attribute that has a module, where it is called."""
    frame = sys._getframe(1)
    while frame and frame.f_globals.get("__name__", "").startswith(OUTSIDE):
        frame = frame.f_back
    while frame:
        for names in (frame.f_locals, frame.f_globals):
            for name, value in list(names.items()):
                if value is module and name != "self":
                    return name
        this = frame.f_locals.get("self")
        own = vars(this) | getattr(this, "_modules", {}) if hasattr(this, "__dict__") else {}
        if name := next((name for name, value in own.items() if value is module), ""):
            return name
        frame = frame.f_back
    return ""
