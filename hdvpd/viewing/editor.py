"""The box with which a scene is changed in the browser: what it holds goes, moves, or is copied."""

from collections.abc import Callable
from typing import Any

import numpy as np
import viser
import viser.transforms

from hdvpd.basics.types import Bool, Float
from hdvpd.viewing.editing import Action, Box, Edit
from hdvpd.viewing.recording import PREDICTION, TRUTH, Recording

_COLOR = (255, 0, 200)
_NOTHING = "The box holds no particle: drag it over some, then select."


class Editor:
    """Controls and box of one page; every scene has edits of its own.

    Attributes:
      edits: what was done to each scene, by its number.
      handle: by which the box is dragged and turned.
    """

    def __init__(
        self,
        server: viser.ViserServer,
        center: Float[np.ndarray, "3"],
        *,
        time: Callable[[], int],
        redraw: Callable[[], None],
        reload: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """Lay the controls out.

        Args:
          server: viser's.
          center: where the box is at first [m].
          time: returns which time is shown.
          redraw: is called after another selection.
          reload: is called after an edit.
          say: is told what cannot be done.
        """
        self.edits: dict[int, list[Edit]] = {}
        self._scene = 0
        self._recording: Recording | None = None
        self._chosen: Box | None = None
        self._time, self._redraw, self._reload, self._say = time, redraw, reload, say
        self._lay_out(server, center)

    def _lay_out(self, server: viser.ViserServer, center: Float[np.ndarray, "3"]) -> None:
        gui = server.gui
        with gui.add_folder("Edit", expand_by_default=False):
            visible = gui.add_checkbox("selection box", False)
            self._size = gui.add_vector3("edges [m]", (0.2, 0.2, 0.2), min=(0.01, 0.01, 0.01))
            self._count = gui.add_text("selected", "0 particles", disabled=True)
            select = gui.add_button("Select what is in the box")
            remove = gui.add_button("Remove")
            move = gui.add_button("Move to the box")
            copy = gui.add_button("Copy to the box")
            undo = gui.add_button("Undo all")
        self.handle = server.scene.add_transform_controls(
            "/edit", scale=0.15, position=tuple(center), visible=False
        )
        self._frame = server.scene.add_box(
            "/edit/box", _COLOR, self._size.value, wireframe=True, visible=False
        )

        @visible.on_update
        def _(_: Any) -> None:
            self.handle.visible = self._frame.visible = visible.value

        @self._size.on_update
        def _(_: Any) -> None:
            self._frame.dimensions = self._size.value

        select.on_click(lambda _: self.select(self.box()))
        remove.on_click(lambda _: self.act("remove"))
        move.on_click(lambda _: self.act("move"))
        copy.on_click(lambda _: self.act("copy"))
        undo.on_click(lambda _: self.undo())

    def box(self) -> Box:
        """Return the box as it stands."""
        pose = np.eye(4)
        pose[:3, :3] = viser.transforms.SO3(np.asarray(self.handle.wxyz)).as_matrix()
        pose[:3, 3] = self.handle.position
        return Box(pose, np.asarray(self._size.value))

    def take(self, scene: int, recording: Recording) -> None:
        """Edit another recording from now on; nothing of it is selected."""
        self._scene, self._recording, self._chosen = scene, recording, None
        self._count.value = "0 particles"

    def select(self, box: Box) -> None:
        """Select what a box holds and say how much: where a rollout starts, else as shown."""
        self._chosen = box
        held = self._held()
        self._count.value = f"{held} particles"
        if held == 0:
            self._chosen = None
            self._say(_NOTHING)
        self._redraw()

    def act(self, action: Action) -> None:
        """Do something to what is selected; moved and copied things go where the box is now."""
        if self._chosen is None:
            self._say(_NOTHING)
            return
        edit = Edit(action, self._chosen, self.box().pose)
        self.edits.setdefault(self._scene, []).append(edit)
        self._reload()

    def undo(self) -> None:
        """Take back every edit of this scene."""
        if self.edits.pop(self._scene, None):
            self._reload()

    def marked(self, layer: str, time: int) -> Bool[np.ndarray, "n"] | None:
        """Return which particles of a layer are selected; None if nothing is.

        Tracked particles stay selected wherever they go.
        """
        if self._chosen is None or self._recording is None:
            return None
        particles = self._recording.layers[layer].particles
        origin = self._recording.last_observed
        when = origin if particles.tracked and time > origin else time
        return particles.mask[time] & self._chosen.holds(particles.positions[when])

    def _held(self) -> int:
        """Count what is selected: where a rollout starts or, where there is none, as shown."""
        if self._recording is None:
            return 0
        if PREDICTION in self._recording.layers:
            marked = self.marked(PREDICTION, self._recording.last_observed)
        else:  # its last frame may be long after the shown one
            marked = self.marked(TRUTH, self._time())
        return 0 if marked is None else int(marked.sum())
