"""A pole on a cart, for the programs of reinforcement learning: Barto, Sutton and Anderson (1983)."""

import math

import numpy as np

GRAVITY, FORCE, SECONDS = 9.8, 10.0, 0.02
CART, POLE, HALF_LENGTH = 1.0, 0.1, 0.5


class CartPole:
    """Pushes go left or right; an episode ends where the pole or the cart is too far, or after `longest`."""

    def __init__(self, seed: int, longest: int = 60) -> None:
        self._random = np.random.default_rng(seed)
        self._longest = longest
        self._state = np.zeros(4)
        self._time = 0

    def reset(self) -> np.ndarray:
        """Begin an episode; return [4]: position, speed, angle and angular speed."""
        self._state, self._time = self._random.uniform(-0.05, 0.05, 4), 0
        return self._state.astype(np.float32)

    def push(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Push to the left (0) or right (1); return the state, the reward, and whether the episode ended."""
        _, speed, angle, turning = self._state
        mass = CART + POLE
        thrust = (FORCE if action else -FORCE) + POLE * HALF_LENGTH * turning**2 * math.sin(angle)
        upper = GRAVITY * math.sin(angle) - math.cos(angle) * thrust / mass
        twist = upper / (HALF_LENGTH * (4 / 3 - POLE * math.cos(angle) ** 2 / mass))
        pull = (thrust - POLE * HALF_LENGTH * twist * math.cos(angle)) / mass
        self._state = self._state + SECONDS * np.array([speed, pull, turning, twist])
        self._time += 1
        fallen = abs(self._state[0]) > 2.4 or abs(self._state[2]) > math.radians(12)
        return self._state.astype(np.float32), 1.0, bool(fallen or self._time >= self._longest)
