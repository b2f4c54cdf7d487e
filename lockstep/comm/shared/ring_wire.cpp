#include "lockstep/comm/shared/ring_wire.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/comm/local/event_count.h"
#include "lockstep/comm/shared/byte_ring.h"
#include "lockstep/comm/shared/processes.h"
#include "lockstep/comm/shared/shared_memory.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kRingBytes = std::size_t{256} << 10;
// A writer that found a ring full goes on when so much is free: few large copies.
constexpr std::size_t kRingSpace = kRingBytes / 8;
constexpr std::chrono::milliseconds kRingTick = 100ms;
// Leaves the cores to the ranks.
constexpr SpinPolicy kRingWait{.spins = 0, .yielding = 20us};

struct alignas(64) RingBell {
  EventCount event;
};

// What precedes a message, or says that one is expected.
struct RingHead {
  static constexpr std::uint64_t kReady = ~std::uint64_t{0};
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
};

// Where the parts are in the memory of `processes`.
struct RingLayout {
  explicit RingLayout(std::size_t processes)
      : processes(processes),
        bells(sizeof(ProcessRecord) * processes),
        states(bells + sizeof(RingBell) * processes),
        rings(whole_pages(states + sizeof(ByteRingState) * processes * processes)),
        bytes(rings + kRingBytes * processes * (processes - 1)) {}
  std::size_t processes;
  std::size_t bells;
  std::size_t states;
  std::size_t rings;
  std::size_t bytes;
};

class RingMemory {
 public:
  RingMemory(int fd, std::size_t processes)
      : layout_(processes), file_(fd), mapping_(file_, 0, layout_.bytes) {}

  static int create(std::size_t processes) {
    const int fd = memfd_create("lockstep-rings", MFD_CLOEXEC);
    if (fd < 0) fail<CommError>("[comm] no shared memory: {}", std::strerror(errno));
    SharedFile file(fd);
    const std::size_t bytes = RingLayout(processes).bytes;
    if (const int error = file.reserve(0, bytes)) {
      fail<MemoryError>("[comm] no {} bytes of shared memory for {} workers of a host: {}", bytes,
                        processes, std::strerror(error));
    }
    return file.give_up();
  }

  std::span<ProcessRecord> records() const {
    return {reinterpret_cast<ProcessRecord*>(mapping_.data()), layout_.processes};
  }
  EventCount& bell(std::size_t process) const {
    return reinterpret_cast<RingBell*>(mapping_.data() + layout_.bells)[process].event;
  }
  ByteRing ring(std::size_t from, std::size_t to) const {
    auto* states = reinterpret_cast<ByteRingState*>(mapping_.data() + layout_.states);
    const std::size_t pair = from * (layout_.processes - 1) + (to > from ? to - 1 : to);
    return {states[from * layout_.processes + to],
            {mapping_.data() + layout_.rings + pair * kRingBytes, kRingBytes}};
  }

 private:
  RingLayout layout_;
  SharedFile file_;
  Mapping mapping_;
};

class RingWire;
struct RingPeer;

class RingTransfer final : public Transfer {
 public:
  RingTransfer(RingWire& wire, RingPeer& peer, std::uint64_t tag, std::span<std::byte> data)
      : wire_(wire), peer_(peer), tag_(tag), data_(data) {}
  ~RingTransfer() override;
  bool await() override;
  void check() override;

  std::uint64_t tag() const { return tag_; }
  std::span<std::byte> data() const { return data_; }
  bool over() const { return over_.load(); }
  void set_over() { over_.store(true); }

 private:
  RingWire& wire_;
  RingPeer& peer_;
  std::uint64_t tag_;
  std::span<std::byte> data_;
  std::atomic<bool> over_ = false;
};

// Another worker of the host. All but the atomics is guarded by the wire's mutex.
struct RingPeer {
  RingPeer(int worker, int process, ByteRing in, ByteRing out, EventCount& bell)
      : worker(worker), process(process), in(in), out(out), bell(bell) {}

  struct Frame {
    RingHead head;
    RingTransfer* transfer = nullptr;  // null: only the head
    std::size_t written = 0;           // of its bytes, head included
  };

  bool flush();
  bool drain();
  void give_up(RingTransfer& transfer);

  int worker;
  int process;
  ByteRing in;
  ByteRing out;
  EventCount& bell;
  std::unordered_set<std::uint64_t> expected;              // by the peer, and not sent yet
  std::unordered_map<std::uint64_t, RingTransfer*> sends;  // not expected yet
  std::unordered_map<std::uint64_t, RingTransfer*> receives;
  std::deque<Frame> frames;  // to be written, in order
  // The message that is being read.
  bool in_message = false;
  RingHead head;
  RingTransfer* into = nullptr;  // null: given up
  std::size_t got = 0;

  std::atomic<bool> blocked = false;  // the ring was full
  std::atomic<bool> lost = false;
  std::string why;  // once it is lost

 private:
  bool write(Frame& frame);
  void begin_message();
};

// Writes what is due; true if anything moved.
bool RingPeer::flush() {
  bool moved = false;
  while (!frames.empty()) {
    const std::size_t before = frames.front().written;
    const bool whole = write(frames.front());
    moved = moved || whole || frames.front().written != before;
    if (!whole) break;
    if (frames.front().transfer != nullptr) frames.front().transfer->set_over();
    frames.pop_front();
  }
  blocked.store(!frames.empty());
  return moved;
}

// True when the frame is written to its end. A head is written whole.
bool RingPeer::write(Frame& frame) {
  if (frame.written == 0) {
    if (out.space() < sizeof(RingHead)) return false;
    frame.written = out.write(std::as_bytes(std::span(&frame.head, 1)));
  }
  if (frame.transfer == nullptr) return true;
  const std::span<const std::byte> data = frame.transfer->data();
  frame.written += out.write(data.subspan(frame.written - sizeof(RingHead)));
  return frame.written == sizeof(RingHead) + data.size();
}

// Reads what has come; true if anything moved.
bool RingPeer::drain() {
  bool moved = false;
  while (in.readable() > 0) {
    moved = true;
    if (!in_message) {
      in.read(std::as_writable_bytes(std::span(&head, 1)));
      begin_message();
      continue;
    }
    const std::size_t left = head.bytes - got;
    got += into != nullptr ? in.read(into->data().subspan(got, left)) : in.skip(left);
    if (got < head.bytes) continue;
    in_message = false;
    if (into != nullptr) into->set_over();
  }
  return moved;
}

void RingPeer::begin_message() {
  if (head.bytes == RingHead::kReady) {
    const auto found = sends.find(head.tag);
    if (found == sends.end()) {
      expected.insert(head.tag);
      return;
    }
    frames.push_back({.head = {head.tag, found->second->data().size()}, .transfer = found->second});
    sends.erase(found);
    return;
  }
  in_message = true;
  got = 0;
  into = nullptr;
  const auto found = receives.find(head.tag);
  if (found == receives.end()) return;
  // Another meaning of the same tag: whoever waits for it finds out by the mails.
  if (head.bytes <= found->second->data().size()) into = found->second;
  receives.erase(found);
}

// What is half written cannot be taken back: nothing may follow it.
void RingPeer::give_up(RingTransfer& transfer) {
  std::erase_if(sends, [&](const auto& one) { return one.second == &transfer; });
  std::erase_if(receives, [&](const auto& one) { return one.second == &transfer; });
  if (into == &transfer) into = nullptr;
  const auto frame =
      std::ranges::find_if(frames, [&](const Frame& one) { return one.transfer == &transfer; });
  if (frame == frames.end()) return;
  if (frame->written == 0) {
    frames.erase(frame);
    return;
  }
  frames.clear();
  out.close();
  bell.notify();
}

class RingWire final : public Wire {
 public:
  RingWire(const RingWireOptions& options, int fd, std::size_t me)
      : worker_(options.worker),
        workers_(options.workers),
        memory_(fd, options.host.size()),
        processes_(memory_.records(), static_cast<int>(me)),
        bell_(memory_.bell(me)) {
    for (std::size_t other = 0; other < options.host.size(); ++other) {
      if (other == me) continue;
      peers_.push_back(std::make_unique<RingPeer>(options.host[other], static_cast<int>(other),
                                                  memory_.ring(other, me), memory_.ring(me, other),
                                                  memory_.bell(other)));
    }
    thread_ = std::thread([this] { run(); });
  }
  ~RingWire() override {
    stop_.store(true);
    bell_.notify();
    thread_.join();
    for (const auto& peer : peers_) {
      peer->out.close();
      peer->bell.notify();
    }
  }

  int worker() const override { return worker_; }
  int workers() const override { return workers_; }
  std::unique_ptr<Transfer> send(int to, std::uint64_t tag,
                                 std::span<const std::byte> data) override {
    RingPeer& peer = this->peer(to);
    // What is sent is only read.
    auto transfer = std::make_unique<RingTransfer>(
        *this, peer, tag, std::span(const_cast<std::byte*>(data.data()), data.size()));
    const std::lock_guard lock(mutex_);
    if (peer.expected.erase(tag) > 0) {
      peer.frames.push_back({.head = {tag, data.size()}, .transfer = transfer.get()});
    } else {
      peer.sends.emplace(tag, transfer.get());
    }
    move(peer);
    return transfer;
  }
  std::unique_ptr<Transfer> receive(int from, std::uint64_t tag,
                                    std::span<std::byte> data) override {
    RingPeer& peer = this->peer(from);
    auto transfer = std::make_unique<RingTransfer>(*this, peer, tag, data);
    const std::lock_guard lock(mutex_);
    peer.receives.insert_or_assign(tag, transfer.get());
    peer.frames.push_back({.head = {tag, RingHead::kReady}});
    move(peer);
    return transfer;
  }
  void interrupt() override {
    interrupted_.store(true);
    moved_.notify();
  }

  bool await(RingTransfer& transfer, RingPeer& peer) {
    const auto ready = [&] { return transfer.over() || peer.lost.load() || interrupted_.load(); };
    moved_.await(ready, kRingTick, kRingWait);
    interrupted_.store(false);
    if (!transfer.over()) check(transfer, peer);
    return transfer.over();
  }
  void check(RingTransfer& transfer, RingPeer& peer) {
    const std::lock_guard lock(mutex_);
    if (!transfer.over() && peer.lost.load()) throw LostWorker(peer.worker, peer.why);
  }
  void give_up(RingTransfer& transfer, RingPeer& peer) {
    const std::lock_guard lock(mutex_);
    peer.give_up(transfer);
  }

 private:
  RingPeer& peer(int worker) {
    const auto found =
        std::ranges::find_if(peers_, [&](const auto& one) { return one->worker == worker; });
    ensure(found != peers_.end(), "[comm] worker {} shares no memory with worker {}", worker_,
           worker);
    return **found;
  }
  // With the mutex.
  bool move(RingPeer& peer) {
    const bool read = peer.drain();
    const bool wrote = peer.flush();
    if (read || wrote) peer.bell.notify();
    if (peer.blocked.load()) bell_.notify();  // the thread waits for space now
    return read || wrote;
  }

  void run() {
    auto last_look = EventCount::Clock::now();
    while (!stop_.load()) {
      bool moved = false;
      for (const auto& peer : peers_) {
        const std::lock_guard lock(mutex_);
        moved = move(*peer) || moved;
      }
      const auto now = EventCount::Clock::now();
      const bool tick = now - last_look >= kRingTick;
      if (tick) last_look = now;
      for (const auto& peer : peers_) moved = look_for_end(*peer, tick) || moved;
      if (moved) {
        moved_.notify();
        continue;
      }
      bell_.await([this] { return stop_.load() || std::ranges::any_of(peers_, has_work); },
                  kRingTick, kRingWait);
    }
  }
  static bool has_work(const std::unique_ptr<RingPeer>& peer) {
    if (peer->in.readable() > 0) return true;
    if (peer->lost.load()) return false;
    return peer->in.closed() || (peer->blocked.load() && peer->out.space() >= kRingSpace);
  }
  // What a worker has written before its end counts.
  bool look_for_end(RingPeer& peer, bool tick) {
    if (peer.lost.load()) return false;
    const bool closed = peer.in.closed();
    if (!closed && !(tick && processes_.is_dead(peer.process))) return false;
    const std::lock_guard lock(mutex_);
    move(peer);
    peer.why =
        closed ? "it has closed the connection"
               : fmt::format("process {} has ended", processes_.record(peer.process).pid.load());
    peer.lost.store(true);
    return true;
  }

  int worker_;
  int workers_;
  RingMemory memory_;
  Processes processes_;
  EventCount& bell_;
  std::vector<std::unique_ptr<RingPeer>> peers_;
  std::mutex mutex_;
  EventCount moved_;  // for the thread that uses the wire
  std::atomic<bool> interrupted_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

RingTransfer::~RingTransfer() {
  wire_.give_up(*this, peer_);
}

bool RingTransfer::await() {
  return over() || wire_.await(*this, peer_);
}

void RingTransfer::check() {
  if (!over()) wire_.check(*this, peer_);
}

}  // namespace

int open_descriptor(const std::string& path) {
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

std::string path_of_descriptor(int fd) {
  return fmt::format("/proc/{}/fd/{}", getpid(), fd);
}

// The first worker makes the memory and keeps it open; all return when all have opened it.
std::unique_ptr<Wire> make_ring_wire(const RingWireOptions& options) {
  const auto found = std::ranges::find(options.host, options.worker);
  ensure(options.store != nullptr && found != options.host.end() && options.host.size() > 1,
         "[comm] worker {} is not one of {} that share memory", options.worker,
         options.host.size());
  const auto end = std::chrono::steady_clock::now() + options.timeout;
  const auto get = [&](const std::string& key, int from) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    try {
      return options.store->get(key, std::max(left, 1ms));
    } catch (const CommError& error) {
      fail<CommError>("[comm] worker {} has waited {} ms for worker {} to share memory: {}",
                      options.worker, options.timeout.count(), from, error.what());
    }
  };
  const auto opened = [&](int worker) {
    return fmt::format("{}/opened {}", options.prefix, worker);
  };
  const int first = options.host.front();
  const std::string key = fmt::format("{}/memory of {}", options.prefix, first);
  int fd = -1;
  if (options.worker == first) {
    fd = RingMemory::create(options.host.size());
    options.store->set(key, path_of_descriptor(fd));
  } else {
    fd = open_descriptor(get(key, first));
    if (fd < 0) {
      fail<CommError>("[comm] worker {} cannot open the memory of worker {}: {}", options.worker,
                      first, std::strerror(errno));
    }
  }
  auto wire = std::make_unique<RingWire>(options, fd,
                                         static_cast<std::size_t>(found - options.host.begin()));
  options.store->set(opened(options.worker), "");
  for (const int other : options.host) get(opened(other), other);
  return wire;
}

}  // namespace lockstep
