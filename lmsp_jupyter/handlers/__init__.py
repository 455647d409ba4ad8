"""The routes of `/lmsp/`: JSON in; JSON or server-sent events out; authentication; nothing else."""

from __future__ import annotations

from typing import Any

from .. import operations
from . import access, chat, models, responses, socket, tasks
from .base import House, LMSPHandler, NotFoundHandler

__all__ = ["House", "routes"]

_HANDLERS: dict[str, type[LMSPHandler]] = {
    "": models.ServiceHandler,
    "/health": models.HealthHandler,
    "/openapi.json": models.OpenAPIHandler,
    "/models": models.ModelsHandler,
    "/models/{model_id}": models.ModelHandler,
    "/models/{model_id}/load": models.LoadHandler,
    "/models/{model_id}/unload": models.UnloadHandler,
    "/responses": responses.ResponsesHandler,
    "/responses/input_tokens": responses.InputTokensHandler,
    "/responses/{response_id}": responses.ResponseHandler,
    "/responses/{response_id}/input_items": responses.InputItemsHandler,
    "/responses/{response_id}/cancel": responses.CancelResponseHandler,
    "/tasks": tasks.TasksHandler,
    "/tasks/{task_id}": tasks.TaskHandler,
    "/tasks/{task_id}/events": tasks.TaskEventsHandler,
    "/tasks/{task_id}/cancel": tasks.CancelTaskHandler,
    "/tokens": access.TokensHandler,
    "/tokens/{token_id}": access.TokenHandler,
    "/approvals": access.ApprovalsHandler,
    "/approvals/{approval_id}": access.ApprovalHandler,
    "/chat/completions": chat.ChatHandler,
    "/events": socket.EventsHandler,
}


def routes(house: House) -> list[tuple[str, type[LMSPHandler], dict[str, Any]]]:
    """The routes, relative to the server's base URL, in the order of the table of operations."""
    table = [
        (rf"lmsp/v1{operations.pattern(path)}/?", _HANDLERS[path], {"house": house, "path": path})
        for path in operations.PATHS
    ]
    return [*table, (r"lmsp(?:/.*)?", NotFoundHandler, {"house": house, "path": "/"})]
