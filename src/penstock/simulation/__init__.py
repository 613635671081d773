"""The whole job in one seeded thread: production code on a simulated clock, scheduler, transport, disk and cluster."""
