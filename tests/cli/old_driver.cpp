// Stands in for an NVIDIA driver that is too old for CUDA 13: contract_test.cpp puts it on the
// program's library path.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
