// The little of C++'s standard library that the kernels use, under the names of its headers: NVRTC has none.
#ifndef ZBENCH_STANDARD
#define ZBENCH_STANDARD

namespace std {

using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using ::memcpy;

inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
inline float sqrt(float x) { return ::sqrtf(x); }

}  // namespace std

#endif
