#include "lockstep/comm/link_end.h"

#include <span>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

class WireEnd final : public LinkEnd {
 public:
  WireEnd(Wire& wire, int peer, std::size_t block_bytes, std::chrono::milliseconds timeout)
      : wire_(wire), peer_(peer), timeout_(timeout), out_(block_bytes), in_(block_bytes) {}

  void send_word(std::uint64_t word) override {
    word_out_ = word;
    await(*wire_.send(peer_, tag(words_out_++, kWord), std::as_bytes(std::span(&word_out_, 1))));
  }
  std::uint64_t receive_word() override {
    expect_word();
    await(*expected_);
    expected_.reset();
    return word_in_;
  }
  void expect_word() override {
    if (expected_ != nullptr) return;
    expected_ = wire_.receive(peer_, tag(words_in_++, kWord),
                              std::as_writable_bytes(std::span(&word_in_, 1)));
  }
  void send_block() override { await(*begin_send()); }
  void receive_block() override { await(*begin_receive()); }
  void swap_blocks() override {
    const std::unique_ptr<Transfer> in = begin_receive();
    const std::unique_ptr<Transfer> out = begin_send();
    await(*in);
    await(*out);
  }

 private:
  static constexpr std::uint64_t kWord = 0;
  static constexpr std::uint64_t kBlock = 1;

  // Words and blocks are counted apart, so that a word can be expected while blocks are on their
  // way.
  static std::uint64_t tag(std::uint64_t number, std::uint64_t kind) { return number * 2 + kind; }

  std::unique_ptr<Transfer> begin_send() {
    return wire_.send(peer_, tag(blocks_out_++, kBlock), out_);
  }
  std::unique_ptr<Transfer> begin_receive() {
    return wire_.receive(peer_, tag(blocks_in_++, kBlock), in_);
  }
  void await(Transfer& transfer) const {
    const auto end = std::chrono::steady_clock::now() + timeout_;
    while (!transfer.await()) {
      if (std::chrono::steady_clock::now() < end) continue;
      fail<CommError>("[link probe] worker {} has waited {} ms for worker {}", wire_.worker(),
                      timeout_.count(), peer_);
    }
  }

  Wire& wire_;
  int peer_;
  std::chrono::milliseconds timeout_;
  std::vector<std::byte> out_, in_;
  std::uint64_t word_out_ = 0;
  std::uint64_t word_in_ = 0;
  std::uint64_t words_out_ = 0, words_in_ = 0, blocks_out_ = 0, blocks_in_ = 0;
  std::unique_ptr<Transfer> expected_;  // destroyed first: it uses the memory above
};

class GroupEnd final : public LinkEnd {
 public:
  GroupEnd(Communicator& pair, std::size_t block_bytes)
      : blocks_(2 * block_bytes),
        send_word_(pair.broadcast(bytes_of(word_out_), pair.rank())),
        receive_word_(pair.broadcast(bytes_of(word_in_), 1 - pair.rank())),
        send_block_(pair.broadcast(std::span(blocks_).first(block_bytes), pair.rank())),
        receive_block_(pair.broadcast(std::span(blocks_).last(block_bytes), 1 - pair.rank())),
        swap_(pair.all_gather(blocks_, DType::I64)) {}

  void send_word(std::uint64_t word) override {
    word_out_ = word;
    run(*send_word_);
  }
  std::uint64_t receive_word() override {
    run(*receive_word_);
    return word_in_;
  }
  void expect_word() override {}
  void send_block() override { run(*send_block_); }
  void receive_block() override { run(*receive_block_); }
  void swap_blocks() override { run(*swap_); }

 private:
  static std::span<std::byte> bytes_of(std::uint64_t& word) {
    return std::as_writable_bytes(std::span(&word, 1));
  }
  static void run(Collective& collective) {
    collective.start();
    collective.finish();
  }

  std::uint64_t word_out_ = 0;
  std::uint64_t word_in_ = 0;
  std::vector<std::byte> blocks_;
  std::unique_ptr<Collective> send_word_, receive_word_, send_block_, receive_block_, swap_;
};

}  // namespace

std::unique_ptr<LinkEnd> make_wire_end(Wire& wire, int peer, std::size_t block_bytes,
                                       std::chrono::milliseconds timeout) {
  return std::make_unique<WireEnd>(wire, peer, block_bytes, timeout);
}

std::unique_ptr<LinkEnd> make_group_end(Communicator& pair, std::size_t block_bytes) {
  require(pair.size() == 2, "[link probe] a link has two ends, not {}", pair.size());
  return std::make_unique<GroupEnd>(pair, block_bytes);
}

}  // namespace lockstep
