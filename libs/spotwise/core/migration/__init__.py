"""Which device goes where and what moves first when a configuration changes (SpotServe, sections 4.2 and 4.3)."""
