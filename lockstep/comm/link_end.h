// LinkEnd: one worker's end of the link to another, for measuring it (link_probe.h). Both ends make
// matching calls in the same order. Sending may wait until the other end receives, or for a word at
// least expects it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/wire.h"

namespace lockstep {

class LinkEnd {
 public:
  virtual ~LinkEnd() = default;
  // A message of eight bytes.
  virtual void send_word(std::uint64_t word) = 0;
  virtual std::uint64_t receive_word() = 0;
  // Says that receive_word will be called: a transport may then be ready for the word earlier.
  virtual void expect_word() = 0;
  // A message as large as the end was made for.
  virtual void send_block() = 0;
  virtual void receive_block() = 0;
  // A block in each direction, at the same time.
  virtual void swap_blocks() = 0;
};

// Over a wire that carries nothing else between the two. LostWorker or CommError where the other
// end is gone or silent for longer than the timeout.
std::unique_ptr<LinkEnd> make_wire_end(Wire& wire, int peer, std::size_t block_bytes,
                                       std::chrono::milliseconds timeout);

// Over the group of the two: words and blocks are broadcasts, and a swap is an all-gather.
std::unique_ptr<LinkEnd> make_group_end(Communicator& pair, std::size_t block_bytes);

}  // namespace lockstep
