// Stands where a program looks for the NVIDIA driver, and is older than any CUDA 13:
// contract_test.cpp starts the program beside it.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
