"""A method whose training a test can hold up: killing something in mid-round is then no matter of speed."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from tacit.methods.pfedclr import PFedCLR


@dataclass(frozen=True)
class Held(PFedCLR):
    """Where TACIT_TEST_HOLD names a folder, round r waits as long as there is a file `r` in it."""

    def receive(self, clients, down, data):
        if folder := os.environ.get("TACIT_TEST_HOLD"):
            while (Path(folder) / str(data.round)).exists():
                time.sleep(0.05)
        return super().receive(clients, down, data)
