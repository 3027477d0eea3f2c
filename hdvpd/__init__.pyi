from hdvpd.basics.errors import UserError as UserError
from hdvpd.basics.types import Camera as Camera
from hdvpd.basics.types import ParticleCloud as ParticleCloud
from hdvpd.basics.types import RgbdFrames as RgbdFrames
from hdvpd.basics.types import RobotPoints as RobotPoints
from hdvpd.config import Config as Config
from hdvpd.config.experiments import load_config as load_config
from hdvpd.data.store import Dataset as Dataset
from hdvpd.evaluation import eval as eval
from hdvpd.model import Model as Model
from hdvpd.training import train as train
from hdvpd.training.checkpoints import load_model as load_model
from hdvpd.world.base import World as World
from hdvpd.world.frames import look_at as look_at
from hdvpd.world.future import Future as Future
from hdvpd.world.future import Images as Images
from hdvpd.world.loading import load as load
from hdvpd.world.loading import make_env as make_env
from hdvpd.world.state import State as State
from hdvpd.world.state import inside as inside
from hdvpd.world.state import near as near

__version__: str
