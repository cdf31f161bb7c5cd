"""The blocking face, for code that is not async: the runtime works in a thread of its own, any thread may call it."""

from concurrent.futures import ThreadPoolExecutor

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_turns

CANTRIP = Cantrip(
    crystal=scripted(lambda context: {"content": f"{context[0].content} Yes."}),
    circle=Circle(gates=["done"], wards=[max_turns(3)]),
)


def main() -> None:
    """One cast, then several from different threads."""
    with Runtime.blocking("memory:") as runtime:
        print(runtime.cast(CANTRIP, "Is it easy?").result)
        with ThreadPoolExecutor() as threads:
            intents = [f"Number {n}?" for n in range(3)]
            for episode in threads.map(lambda intent: runtime.cast(CANTRIP, intent), intents):
                print(episode.result)
        print(len(runtime.loom.entities()), "entities are in the loom")


if __name__ == "__main__":
    main()
