// What the library shows of itself.
#pragma once

#define ZBENCH_EXPORT extern "C" __attribute__((visibility("default")))
