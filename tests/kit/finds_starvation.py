from asyncdispatch import DispatcherConfig
from asyncdispatch.testing import SteppedDispatcher, strategies
from tests.kit.plugins.notes import Notes


def play(plugin=Notes):
    """For a minute there is a Pod to be bound each second, which is what the server can take: is the note written?"""
    dispatcher = SteppedDispatcher(DispatcherConfig(max_in_flight=1))
    pods = [dispatcher.server.put(strategies.pod(f"p{number}")) for number in range(61)]
    notes = plugin(dispatcher, dispatcher.cluster)
    for second in range(60):
        notes.note(pods[60], f"{second} Pods were more urgent")
        dispatcher.submit(dispatcher.cluster.bind(pods[second], "n"))
        dispatcher.go_on()
        dispatcher.advance(1.0)
    assert "annotations" in dispatcher.server.get(pods[60])["metadata"]
