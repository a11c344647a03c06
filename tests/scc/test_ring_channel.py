import pytest

from ciel.testing.channel_suite import RingChannelSuite, SocketChannelSuite


class TestSockets(SocketChannelSuite):
    pass


@pytest.mark.requirement("CIB-32")
class TestRings(RingChannelSuite):
    pass


class TestRingsLookedAt(RingChannelSuite):
    spin_us = 50
