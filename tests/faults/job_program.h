// What the jobs of faults train, as their program (worker.cpp) and those who judge it know it.
#pragma once

namespace lockstep::faults {

inline constexpr int kSamples = 54;
inline constexpr int kBatch = 13;
inline constexpr int kEpochs = 6;
inline constexpr int kSteps = 30;     // in all epochs
inline constexpr int kCopyEvery = 4;  // and a checkpoint
inline constexpr const char* kFaketime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

}  // namespace lockstep::faults
