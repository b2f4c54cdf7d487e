// Replaces the oneDNN kernels in a build without oneDNN (Debian: libdnnl-dev): the reference
// kernels then compute everything.
#include "lockstep/kernels/kernel.h"
#include "lockstep/kernels/onednn/version.h"

namespace lockstep {

void add_onednn_kernels(KernelLibrary&) {}

std::string onednn_version() {
  return "";
}

}  // namespace lockstep
