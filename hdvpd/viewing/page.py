"""The page of the viewer: what can be set, and what happens then.

Everything is shared: whoever moves the slider moves it in every browser; only a novel view belongs
to the browser that asked for it. Texts from data are shown as plain text, never as markup.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import viser

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import UInt8
from hdvpd.viewing.colors import COLORINGS
from hdvpd.viewing.editor import Editor
from hdvpd.viewing.recording import PREDICTION, TRUTH, Recording
from hdvpd.viewing.scene import SceneView, camera_pose, layers_of
from hdvpd.viewing.sources import AbstractSource

_GREY = np.full((2, 2, 3), 128, np.uint8)


class Page:
    """One source, shown.

    Attributes:
      server: viser's.
      source: what is shown.
      view: draws it.
    """

    def __init__(self, server: viser.ViserServer, source: AbstractSource) -> None:
        """Load the first scene and lay the page out.

        Raises:
          UserError: the scene cannot be loaded.
        """
        self.server, self.source = server, source
        self._busy = threading.RLock()
        self._stopping = threading.Event()
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        server.gui.set_panel_label("hdvpd")
        self.view = SceneView(server, source.load(0))
        self._lay_out()
        self._show_choices()
        self.redraw()
        self._player = threading.Thread(target=self._play, daemon=True, name="hdvpd-play")
        self._player.start()

    def stop(self) -> None:
        """End playing."""
        self._stopping.set()
        self._player.join()

    @property
    def recording(self) -> Recording:
        """What is drawn."""
        return self.view.recording

    @property
    def shown_time(self) -> int:
        """Which of the recording's times is drawn."""
        return min(int(self.time.value), self.recording.num_times - 1)

    @property
    def pause_s(self) -> float:
        """How long a time is drawn while it plays [s]; frames that are left out take theirs too."""
        return self.recording.stride / self._rate.value

    def _lay_out(self) -> None:
        gui = self.server.gui
        self._status = gui.add_text("status", "ready", disabled=True)
        titles = unique(self.source.titles)
        self.scene = gui.add_dropdown("scene", titles, initial_value=titles[0])
        with gui.add_folder("Time"):
            last = max(self.recording.num_times - 1, 1)
            self.time = gui.add_slider("time", 0, last, 1, 0)
            self._when = gui.add_text("shown", "", disabled=True)
            self.playing = gui.add_checkbox("play", False)
            self._rate = gui.add_slider("frames per second", 1, 30, 1, 4)
        with gui.add_folder("Particles"):
            self.shown = gui.add_dropdown("show", layers_of(self.recording))
            self.coloring = gui.add_dropdown("colour by", tuple(COLORINGS))
            size = gui.add_slider("size [mm]", 1, 20, 0.5, 1000 * self.view.point_size)
            self._skeleton = gui.add_checkbox("robot", True)
            self._cameras = gui.add_checkbox("cameras", True)
            self._box = gui.add_checkbox("workspace", True)
        with gui.add_folder("Images"):
            names = unique(self.recording.cameras)
            self.camera = gui.add_dropdown("camera", names)
            self._score = gui.add_text("SSIM", "", disabled=True)
            self._images = {
                name: gui.add_image(_GREY, label=name) for name in (TRUTH, PREDICTION, "error")
            }
        with gui.add_folder("Novel view", expand_by_default=False):
            button = gui.add_button("Render from here")
            button.on_click(self._render_novel)
        self.editor = Editor(
            self.server,
            np.mean(self.recording.workspace, axis=0),
            time=lambda: self.shown_time,
            redraw=self.redraw,
            reload=self.reload,
            say=self.say,
        )
        self.editor.take(0, self.recording)
        drawn = (
            self.time, self.shown, self.coloring, self._skeleton, self._cameras, self._box,
            self.camera,
        )  # fmt: skip
        for control in drawn:
            control.on_update(lambda _: self.redraw())
        self.scene.on_update(lambda _: self.reload())

        @size.on_update
        def _(_: Any) -> None:
            self.view.point_size = size.value / 1000
            self.redraw()

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Say what is done while it takes long; a mistake becomes the status, not a traceback."""
        with self._busy:
            self._status.value = f"{what} ..."
            self.server.flush()
            try:
                yield
                self._status.value = "ready"
            except UserError as error:
                self._status.value = str(error)
            except Exception as error:
                logging.getLogger("hdvpd").exception("%s failed", what)
                self._status.value = f"{what} failed: {error}"

    def say(self, text: str) -> None:
        """Show a sentence where the page shows what it does."""
        self._status.value = text

    def reload(self) -> None:
        """Load the chosen scene with the edits made to it."""
        with self.working("loading and rolling out"):
            index = self.scene.options.index(self.scene.value)
            recording = self.source.load(index, self.editor.edits.get(index, ()))
            self.editor.take(index, recording)
            self.take(recording)

    def take(self, recording: Recording) -> None:
        """Show another recording at the same time, as far as it has it."""
        with self._busy:
            self.view.take(recording)
            self._show_choices()
            self.redraw()

    def draw_only_particles(self) -> None:
        """Leave robot, cameras and workspace out."""
        for control in (self._skeleton, self._cameras, self._box):
            control.value = False

    def _show_choices(self) -> None:
        choices = layers_of(self.recording)
        if tuple(self.shown.options) != choices:
            self.shown.options = choices
        if self.shown.value not in choices:
            self.shown.value = choices[0]
        self.time.max = max(self.recording.num_times - 1, 1)
        self.time.value = min(self.time.value, self.recording.num_times - 1)
        for name, image in self._images.items():
            both = len(self.recording.layers) == 2
            image.visible = name in self.recording.layers or (name == "error" and both)

    def redraw(self) -> None:
        """Draw what the controls say."""
        with self._busy:
            time = self.shown_time
            self._when.value = self.recording.describe(time)
            self.view.draw(
                time,
                shown=self.shown.value,
                coloring=self.coloring.value,
                skeleton=self._skeleton.value,
                cameras=self._cameras.value,
                box=self._box.value,
                marked=self.editor.marked,
            )
            self._show_images(time, self.camera.options.index(self.camera.value))

    def _show_images(self, time: int, view: int) -> None:
        layers = self.recording.layers
        for name, layer in layers.items():
            self._images[name].image = layer.rgb[time, view]
        if len(layers) == 2:
            pair = layers[TRUTH].rgb[time, view], layers[PREDICTION].rgb[time, view]
            self._images["error"].image = image_error(*pair)
        ssim = self.recording.ssim
        self._score.value = "nothing to compare" if ssim is None else f"{ssim[time, view]:.3f}"

    def _render_novel(self, event: viser.GuiEvent) -> None:
        client = event.client
        if client is None:
            return
        with self.working("rendering from this view"):
            pose, fov = camera_pose(client.camera), client.camera.fov
            image = self.source.render(self.recording, int(self.time.value), pose, fov)
            if client.client_id not in self.server.get_clients():
                raise UserError("The browser that asked for this view has gone.")
            shown = client.gui.add_modal("The model's view from here")
            with shown:
                client.gui.add_image(image)
                client.gui.add_button("Close").on_click(lambda _: shown.close())

    def _play(self) -> None:
        while not self._stopping.wait(self.pause_s):
            if self.playing.value:
                self.time.value = (int(self.time.value) + 1) % self.recording.num_times
                self.redraw()


def image_error(
    first: UInt8[np.ndarray, "h w 3"], second: UInt8[np.ndarray, "h w 3"]
) -> UInt8[np.ndarray, "h w 3"]:
    """Show how far two images differ: black where they agree, white at a difference of 128."""
    difference = np.abs(first.astype(np.int16) - second).max(-1)
    return np.repeat(np.minimum(2 * difference, 255).astype(np.uint8)[..., None], 3, axis=-1)


def unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Number names that are alike, for lists to choose from."""
    if len(set(names)) == len(names):
        return names
    return tuple(f"{i}: {name}" for i, name in enumerate(names))
