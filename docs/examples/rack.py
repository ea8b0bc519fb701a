"""A provider of machines from a list, for instance those of a rack; docs/providers.md says what one has to do."""

import time

from spotwise.cloud.instances import AcquiredInstance, NoCapacity, ProviderRefused
from spotwise.core.messages.fleet import InstanceState, Market


class Rack:
    """Lends machines. `lent` outlives a provider: here a dictionary, for a real one a table."""

    def __init__(self, mesh, machines, lent):
        self.mesh, self.machines, self.lent = mesh, machines, lent

    async def acquire(self, request):
        if known := [each for each in await self.instances() if each.token == request.token]:
            return known
        fitting = [name for name, kind in self.machines.items() if kind in request.instance_types]
        if not fitting:
            raise ProviderRefused(f"no machine is a {' or '.join(request.instance_types)}; add one to the rack")
        used = [each.address for _, each in self.lent.values() if each.state is InstanceState.RUNNING]
        free = [name for name in fitting if name not in used][: request.count]
        if not free:
            raise NoCapacity(request.instance_types, request.market, "all are lent")
        for name in free:
            self._lend(name, request)
        return [each for each in await self.instances() if each.token == request.token]

    def _lend(self, name, request, state=InstanceState.RUNNING):
        instance_id = f"{name}-{len(self.lent)}"  # a machine that is lent again is another instance
        instance = AcquiredInstance(
            instance_id, self.machines[name], request.market, state, time.time(), request.token, request.tags, name
        )
        self.lent[instance_id] = (self.mesh, instance)

    async def release(self, instance_ids):
        for each in await self.instances():
            if each.id in instance_ids:
                gone = AcquiredInstance(
                    each.id,
                    each.instance_type,
                    each.market,
                    InstanceState.GONE,
                    each.launched_unix_s,
                    each.token,
                    each.tags,
                )
                self.lent[each.id] = (self.mesh, gone)

    async def instances(self):
        own = [each for mesh, each in self.lent.values() if mesh == self.mesh]
        return sorted(own, key=lambda each: (each.launched_unix_s, each.id))

    async def close(self):
        pass
