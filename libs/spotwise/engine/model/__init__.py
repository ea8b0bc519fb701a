from spotwise.engine.model.deferred_imports import defer_unused_imports

defer_unused_imports()
