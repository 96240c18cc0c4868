from .model import Ticket
