"""A recording as one page of HTML: three dimensions and a bar to play, without a server."""

import contextlib
import io
from pathlib import Path

import viser

from hdvpd.basics.files import explain_write_errors, write
from hdvpd.viewing.recording import Recording
from hdvpd.viewing.scene import SceneView, layers_of


def start_server(host: str, port: int) -> viser.ViserServer:
    """Start viser without its banner; it takes the next free port if this one is in use."""
    with contextlib.redirect_stdout(io.StringIO()):
        return viser.ViserServer(host=host, port=port, verbose=False)


def stop_server(server: viser.ViserServer) -> None:
    """Stop viser, which would say so."""
    with contextlib.redirect_stdout(io.StringIO()):
        server.stop()


def render_page(recording: Recording, *, frames_per_second: float = 4.0) -> str:
    """Make a page that plays a recording; it refers to nothing outside itself.

    Args:
      recording: what to show; of truth and prediction, the prediction.
      frames_per_second: how quickly it plays; frames that are left out take their time too.

    Returns:
      HTML.
    """
    server = start_server("localhost", 0)
    try:
        view = SceneView(server, recording)
        serializer = server.get_scene_serializer()
        for time in range(recording.num_times):
            view.draw(time, shown=layers_of(recording)[0], coloring="rendered colour")
            serializer.insert_sleep(recording.stride / frames_per_second)
        return serializer.as_html()
    finally:
        stop_server(server)


def write_page(recording: Recording, file: Path) -> None:
    """Write `render_page`; the file is there when it is whole.

    Args:
      recording: what to show.
      file: its final place; its folder is made.

    Raises:
      UserError: the disk is full or not writable.
    """
    remedy = "Free some space or permit writing there, then export again."
    with explain_write_errors(file, remedy):
        file.parent.mkdir(parents=True, exist_ok=True)
    write(file, render_page(recording), remedy)
