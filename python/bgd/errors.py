"""Every exception of this package. All of them are subclasses of `BgdError`."""

from ._failure import BgdError as BgdError
from ._failure import CallError as CallError
from ._failure import ConnectionLost as ConnectionLost
from ._failure import Garbled as Garbled
from ._failure import NoAnswer as NoAnswer
from ._failure import NoDaemon as NoDaemon
from ._failure import OtherInstance as OtherInstance
from ._failure import SystemFailure as SystemFailure
from ._failure import TaskFailed as TaskFailed
from ._failure import Timeout as Timeout
from ._failure import UntrustedSocket as UntrustedSocket
from ._failure import UsageError as UsageError
from ._kinds import *  # noqa: F403
