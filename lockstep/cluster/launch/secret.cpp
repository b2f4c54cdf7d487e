#include "lockstep/cluster/launch/secret.h"

#include <sys/random.h>

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/cluster/launch/descriptor.h"

namespace lockstep::launch {

std::string make_secret() {
  std::array<unsigned char, 32> bytes{};
  // Up to 256 bytes come whole.
  if (getrandom(bytes.data(), bytes.size(), 0) != std::ssize(bytes)) {
    fail_with_errno("the system gives no random bytes");
  }
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace lockstep::launch
