from hdvpd import eval as eval
from hdvpd import train as train
from hdvpd.config import Config as Config
from hdvpd.config.experiments import load_config as load_config
from hdvpd.data.store import Dataset as Dataset
from hdvpd.errors import UserError as UserError
from hdvpd.model import Model as Model
from hdvpd.training.checkpoints import load_model as load_model
from hdvpd.types import Camera as Camera
from hdvpd.types import ParticleCloud as ParticleCloud
from hdvpd.types import RgbdFrames as RgbdFrames
from hdvpd.types import RobotPoints as RobotPoints

__version__: str
