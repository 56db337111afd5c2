"""Running ServerApp and ClientApp in this process: no Ray, no SuperLink, the same messages."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedforget import presets
from fedforget.runs import RunDirectory, default_path

Scalar = bool | int | float | str


class InlineGrid(Grid):
    """A grid whose nodes are a ClientApp in this process.

    A message is handled when its reply is pulled. As in Flower, an exception in the ClientApp
    becomes an error reply, and a message to an unknown node is dropped.

    Parameters
    ----------
    client_app : ClientApp
    node_configs : sequence of mapping
        One node each; its Flower node configuration.
    run_config : mapping, optional
    run_id : int
    """

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[Mapping[str, Scalar]],
        run_config: Mapping[str, Scalar] | None = None,
        run_id: int = 1,
    ) -> None:
        self._app = client_app
        self._run = Run.create_empty(run_id)
        self._numbers = itertools.count(1)
        self._pending: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.contexts = {
            1001 + i: Context(
                run_id=run_id,
                node_id=1001 + i,
                node_config=dict(node),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i, node in enumerate(node_configs)
        }

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the nodes' ids."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Accept messages; return their ids."""
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self.contexts:
                continue
            name = f"m{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            self._pending[name] = message
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Handle the messages that were asked for, and return the replies."""
        replies = []
        for name in list(message_ids):
            message = self._pending.pop(name, None)
            if message is None:
                continue
            try:
                reply = self._app(message, self.contexts[message.metadata.dst_node_id])
            except Exception as error:
                wrapped = ClientAppException(str(error))
                reason = f"{type(wrapped)}:<'{wrapped}'>"
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
            reply.metadata.__dict__["_message_id"] = f"r{name}"
            replies.append(reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push messages and pull their replies."""
        del timeout
        return self.pull_messages(self.push_messages(messages))


@contextlib.contextmanager
def task_identity(run_id: int = 1) -> Iterator[None]:
    """Be a Flower task for a while: a message reads its sender from the process."""
    kept = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, SUPERLINK_NODE_ID
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = kept


def run_inline(preset: str, overrides: str = "", out: str | Path = "", *, action: str = "") -> RunDirectory:
    """Run a preset in this process, clients one after another.

    Parameters
    ----------
    preset : str
        A preset's name, or a YAML file.
    overrides : str
        ``key=value`` pairs, separated by spaces, or a JSON list of them.
    out : str or Path
        The run's directory; empty for a new one in ``$FEDFORGET_HOME/runs``.
    action : str
        As for :func:`simulations.flwr_run.run_flower`.

    Returns
    -------
    RunDirectory

    Raises
    ------
    FedForgetError
        As :func:`simulations.server_app.run_unlearning`.
    """
    from clients.client_app import app as client_app
    from simulations.server_app import app as server_app

    config = RunDirectory(out).sequential if action else presets.load_any(preset, overrides)
    count = config.simulation.nodes
    path = Path(out) if out else default_path(config.name)
    settings: dict[str, Scalar] = {"config": preset, "overrides": overrides, "out": str(path.resolve())}
    settings["action"] = action
    nodes = [{"partition-id": i, "num-partitions": count} for i in range(count)]
    with task_identity():
        grid = InlineGrid(client_app, nodes, settings)
        context = Context(
            run_id=1, node_id=SUPERLINK_NODE_ID, node_config={}, state=RecordDict(), run_config=dict(settings)
        )
        server_app(grid, context)
    return RunDirectory(path)
