from ciel.testing.channel_suite import RingChannelSuite, SocketChannelSuite


class TestSockets(SocketChannelSuite):
    pass


class TestRings(RingChannelSuite):
    pass


class TestRingsLookedAt(RingChannelSuite):
    spin_us = 50
