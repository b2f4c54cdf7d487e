// A TFRecord file of two Examples that Lockstep had no part in: the features were set and
// serialised by the Python runtime of protobuf (messages of tf.train.Example), framed by
// TensorBoard's record writer.
//   image: the bytes FF D8 00 "jpeg"; label: 3; weights: 0.5, -1.25, 3e38
//   image: no bytes; label: -1, 2^40; weights: none
#pragma once

#include <string>
#include <string_view>

namespace lockstep::testing {

inline std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

inline std::string tensorflow_file() {
  return from_hex(
      "4500000000000000ebe668b00a430a140a05696d616765120b0a090a07ffd8006a7065670a0e0a05"
      "6c6162656c12051a030a01030a1b0a07776569676874731210120e0a0c0000003f0000a0bfe6b161"
      "7f943652df3f00000000000000516576610a3d0a0d0a05696d61676512040a020a000a1d0a056c61"
      "62656c12141a120a10ffffffffffffffffff018080808080200a0d0a077765696768747312021200"
      "55a6294c");
}

}  // namespace lockstep::testing
