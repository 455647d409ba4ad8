"""The service and its models (B1)."""

from __future__ import annotations

import msgspec

from .. import openapi
from ..protocol import Health, ModelList
from .base import LMSPHandler


class ServiceHandler(LMSPHandler):
    """`GET /lmsp/v1` (B1.1)."""

    async def get(self) -> None:
        service = self.house.service
        default = service.default_model or await self.house.runner.first_model()
        self.send(msgspec.structs.replace(service, default_model=default))


class HealthHandler(LMSPHandler):
    """`GET /lmsp/v1/health` (B1.5)."""

    def get(self) -> None:
        self.send(Health())


class OpenAPIHandler(LMSPHandler):
    """`GET /lmsp/v1/openapi.json` (B1.5)."""

    def get(self) -> None:
        url = f"{self.request.protocol}://{self.request.host}{self.base_url}lmsp/v1"
        self.send_json(msgspec.json.encode(openapi.document(url)))


class ModelsHandler(LMSPHandler):
    """`GET /lmsp/v1/models` (B1.2)."""

    async def get(self) -> None:
        self.send(ModelList(data=await self.house.runner.models()))


class ModelHandler(LMSPHandler):
    """`GET /lmsp/v1/models/{id}` (B1.2)."""

    async def get(self, model_id: str) -> None:
        self.send(await self.house.runner.model(model_id))


class LoadHandler(LMSPHandler):
    """`POST /lmsp/v1/models/{id}/load` (B1.3). Who leaves does not stop the loading."""

    async def post(self, model_id: str) -> None:
        self.send(await self.house.runner.load(model_id))


class UnloadHandler(LMSPHandler):
    """`POST /lmsp/v1/models/{id}/unload` (B1.3)."""

    async def post(self, model_id: str) -> None:
        self.send(await self.house.runner.unload(model_id))
