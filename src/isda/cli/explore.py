"""The command ``isda explore``."""

from pathlib import Path

import tyro

__all__ = ["explore"]


def explore(
    run: tyro.conf.Positional[Path],
    *,
    directions: int = 5,
    images: int = 8,
    most: int | None = None,
    generator: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    open: bool = True,
    data_root: Path | None = None,
    device: str = "auto",
) -> None:
    """Open a page on this machine to move along the directions of classes and see what lies there.

    Args:
        run: a run folder of a classifier.
        directions: of each class, those of the largest variance.
        images: nearest to where a feature is moved.
        most: look at this many training images at most, equally many of each class; by default at 2,000, or 10 of each
            class.
        generator: the run folder of a generator (`isda generate train`) of the same data: the page then also makes
            images for moved features.
        host: the address to listen at. By default only this machine can reach the page.
        port: to listen at; any that is free by default.
        open: open the page in a browser.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
    """
    import sys

    from isda.analysis.explorer import Scene, make_application
    from isda.analysis.explorer.guard import is_loopback
    from isda.analysis.explorer.imagining import Imagining
    from isda.analysis.explorer.serving import listen, serve
    from isda.analysis.observing import observe
    from isda.classification.trained import load_trained
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless

    for name, value, largest in (("directions", directions, 20), ("images", images, 60)):
        if not 1 <= value <= largest:
            raise ValueError(f"{name} must be from 1 to {largest}, got {value}")
    with listen(host, port) as place, join_processes(device) as processes:
        least = 10 * len(load_trained(run).config.classes)
        observed = observe(run, data_root, processes.device, most=max(2000, least) if most is None else most)
        if not is_loopback(host):
            warned = f"whoever can reach {host} can see the images of this run; nobody is asked for a password"
            print(harmless(f"isda: warning: {warned}"), file=sys.stderr)
        imagining = None if generator is None else Imagining(observed, generator, processes.device)
        application = make_application(Scene(observed, directions, images), host, imagining)

        def told(address: str) -> None:
            print(harmless(f"{run} at {address}, until Ctrl-C"), flush=True)

        serve(application, place, host, told, show=open)
