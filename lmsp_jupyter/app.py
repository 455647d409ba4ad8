"""The Jupyter Server extension: its settings, and building the service from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
from jupyter_core.paths import jupyter_data_dir
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from traitlets import Int, Unicode, default

from . import __version__
from .addresses import local_url
from .approvals import Approvals
from .auth import Tokens
from .catalog import Catalog, models_folder
from .engines import Settings, installed
from .handlers import House, routes
from .hosts import Hosts
from .journal import Journal
from .keys import Keys
from .protocol import LMSP_VERSIONS, Engine, Limits, Service
from .runner import Runner
from .store import Store
from .strict_json import MAX_BODY_BYTES

PORT = 8989
"""Where a headless service listens, or at the next free port: not where users expect their notebooks."""


class LMSPApp(ExtensionApp):
    """Local language models under `/lmsp/v1`."""

    name = "lmsp_jupyter"

    default_model = Unicode(help="The model for requests from clients that name none; else the first one.").tag(
        config=True
    )
    models_folder = Unicode(help="Where models are kept.").tag(config=True)
    context_length = Int(8192, min=256, help="Upper bound in tokens for the context of one request.").tag(config=True)
    parallel = Int(4, min=1, help="Requests that one model answers at the same time.").tag(config=True)
    threads = Int(0, min=0, help="CPU threads of an engine; 0 is the engine's choice.").tag(config=True)
    max_body = Int(MAX_BODY_BYTES, min=1, help="Bytes of a request's body that are read.").tag(config=True)
    queue_limit = Int(64, min=0, help="Requests that may wait for one model.").tag(config=True)

    data_folder = Unicode(help="Where tasks, stored responses and tokens are kept.").tag(config=True)
    event_retention = Int(3600, min=0, help="Seconds for which the events of a task can be read after its end.").tag(
        config=True
    )
    task_retention = Int(30 * 86400, min=0, help="Seconds for which a task is kept after its end.").tag(config=True)
    models_memory = Int(
        min=0, help="Bytes that loaded models may take together; else three quarters of the memory."
    ).tag(config=True)
    idle_unload = Int(1800, min=0, help="Seconds after which an unused model is unloaded; 0 is never.").tag(config=True)

    @default("models_memory")
    def _default_models_memory(self) -> int:
        return int(psutil.virtual_memory().total * 3 // 4)

    @default("data_folder")
    def _default_data_folder(self) -> str:
        return str(Path(jupyter_data_dir(), "lmsp"))

    @default("models_folder")
    def _default_models_folder(self) -> str:
        return str(models_folder())

    def initialize_handlers(self) -> None:
        settings = Settings(context_length=self.context_length, parallel=self.parallel, threads=self.threads or None)
        catalog = Catalog(installed(), Path(self.models_folder).expanduser().absolute(), settings)
        store = Store(Path(self.data_folder).expanduser().absolute())
        journal = Journal(store, event_retention=self.event_retention, task_retention=self.task_retention)
        hosts = Hosts(settings, memory=self.models_memory, idle=self.idle_unload)
        self.runner = Runner(catalog, hosts, journal, settings, self.queue_limit)
        self.tokens = Tokens(store)
        house = House(
            runner=self.runner,
            journal=journal,
            tokens=self.tokens,
            keys=Keys(journal, store),
            approvals=Approvals(),
            service=self._service(),
        )
        self.handlers.extend(routes(house))

    def _service(self) -> Service:
        missing = {name: engine.unavailable() for name, engine in installed().items()}
        engines = [
            Engine(name=name, available=why is None, reason=why.reason if why else None, fix=why.fix if why else None)
            for name, why in missing.items()
        ]
        return Service(
            name="lmsp_jupyter",
            version=__version__,
            lmsp_versions=LMSP_VERSIONS,
            capabilities=["conversations", "tasks"],
            engines=engines,
            default_model=self.default_model or None,
            limits=Limits(
                queue=self.queue_limit,
                body=self.max_body,
                event_retention=self.event_retention,
                task_retention=self.task_retention,
            ),
        )

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """The port is bound now, and not before: tell the kernels that start from here on (B5.7)."""
        self.runner.open()
        if serverapp.sock:
            return  # its URL is none that a client can use
        url = local_url(serverapp.connection_url, serverapp.ip, serverapp.port)
        os.environ["LMSP_BASE_URL"] = f"{url}lmsp/v1"
        os.environ["LMSP_TOKEN"] = self.tokens.mint_for_kernel()
        self.log.info("LMSP is served at %s; `jupyter server list` shows the token.", os.environ["LMSP_BASE_URL"])

    def current_activity(self) -> int:
        """Responses in the making; a server that shuts down when idle waits for them."""
        return self.runner.active

    async def stop_extension(self) -> None:
        await self.runner.close()


class HeadlessServer(ServerApp):
    """A Jupyter server that serves LMSP alone: no kernels, terminals, files or pages."""

    default_services = ("api", "auth", "security", "shutdown")  # type: ignore[assignment]  # fewer than the base has
    open_browser = False
    # Root is kept from Jupyter servers for the code that they run; this one runs none.
    allow_root = True

    @classmethod
    def serve(cls, arguments: list[str], idle_timeout: int = 0) -> None:
        """Serve until interrupted, or, if `idle_timeout` is not 0, idle for so many seconds."""
        server = cls.instance(
            jpserver_extensions={"lmsp_jupyter": True},
            port=PORT,
            answer_yes=True,
            shutdown_no_activity_timeout=idle_timeout,
        )
        server.initialize(arguments, find_extensions=False)
        server.start()
