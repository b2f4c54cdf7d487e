// MPI makes progress only inside its calls, so a wait asks again and again: at first at once, then
// after longer and longer sleeps, as several workers may share a core.
#include "lockstep/comm/mpi/mpi_wire.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using MpiClock = std::chrono::steady_clock;

constexpr auto kMpiYielding = 50us;
constexpr auto kMpiShortestSleep = 20us;
constexpr auto kMpiLongestSleep = 1000us;
constexpr auto kMpiLook = 100ms;
constexpr auto kMpiGiveUp = 200ms;

std::string text_of_mpi(int error) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(error, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

void check_mpi(int error, const char* what) {
  if (error != MPI_SUCCESS) fail<CommError>("[mpi] {}: {}", what, text_of_mpi(error));
}

// Finalises MPI when the program ends, if it was initialised here.
class MpiLibrary {
 public:
  MpiLibrary() {
    int initialized = 0;
    MPI_Initialized(&initialized);
    int level = MPI_THREAD_SINGLE;
    if (initialized) {
      MPI_Query_thread(&level);
    } else {
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
      own_ = true;
    }
    require(level == MPI_THREAD_MULTIPLE,
            "[mpi] MPI was initialised with the thread level {}; call MPI_Init_thread with "
            "MPI_THREAD_MULTIPLE ({})",
            level, MPI_THREAD_MULTIPLE);
  }
  ~MpiLibrary() {
    if (own_ && !finalized()) MPI_Finalize();
  }
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

  static bool finalized() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    return finalized != 0;
  }
  // MPI is there once for a process.
  static void use() { static const MpiLibrary library; }

 private:
  bool own_ = false;
};

// Asks `over` until it is true; false when `at_most` has passed or `interrupted` was set.
template <class Over>
bool await_mpi(const Over& over, MpiClock::duration at_most, std::atomic<bool>& interrupted) {
  const MpiClock::time_point begin = MpiClock::now();
  MpiClock::duration sleep = kMpiShortestSleep;
  for (;;) {
    if (over()) return true;
    const MpiClock::duration waited = MpiClock::now() - begin;
    if (interrupted.exchange(false) || waited >= at_most) return false;
    if (waited < kMpiYielding) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min<MpiClock::duration>(sleep * 5 / 4, kMpiLongestSleep);
    }
  }
}

class MpiTransfer final : public Transfer {
 public:
  MpiTransfer(std::atomic<bool>& interrupted, std::atomic<bool>& leaks, int peer, bool sends)
      : interrupted_(interrupted), leaks_(leaks), peer_(peer), sends_(sends) {}
  // What MPI is in the middle of cannot be taken back. It is awaited for a while, then left.
  ~MpiTransfer() override {
    if (over_ || request_ == MPI_REQUEST_NULL || MpiLibrary::finalized()) return;
    if (!sends_) MPI_Cancel(&request_);
    std::atomic<bool> never = false;
    try {
      if (!await_mpi([&] { return test(); }, kMpiGiveUp, never)) leaks_ = true;
    } catch (const LostWorker&) {
      leaks_ = true;
    }
  }

  MPI_Request& request() { return request_; }
  void check_error(int error) const {
    if (error != MPI_SUCCESS) throw LostWorker(peer_, text_of_mpi(error));
  }
  bool await() override {
    return over_ || await_mpi([&] { return test(); }, kMpiLook, interrupted_);
  }
  void check() override {
    if (!over_) test();
  }

 private:
  bool test() {
    int done = 0;
    check_error(MPI_Test(&request_, &done, MPI_STATUS_IGNORE));
    return over_ = done != 0;
  }

  std::atomic<bool>& interrupted_;
  std::atomic<bool>& leaks_;
  int peer_;
  bool sends_;
  bool over_ = false;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

class MpiWire final : public Wire {
 public:
  // With a communicator of its own: its messages meet no others.
  explicit MpiWire(std::chrono::milliseconds timeout) : place_(mpi_place()) {
    MPI_Request made = MPI_REQUEST_NULL;
    check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &made), "MPI_Comm_idup");
    const auto over = [&] {
      int done = 0;
      check_mpi(MPI_Test(&made, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      return done != 0;
    };
    const MpiClock::time_point end = MpiClock::now() + timeout;
    while (!await_mpi(over, kMpiLook, interrupted_)) {
      if (MpiClock::now() < end) continue;
      fail<CommError>("[mpi] worker {} has waited {} ms for the others of {} workers to connect",
                      place_.worker, timeout.count(), place_.workers);
    }
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    void* most = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, &most, &found);
    require(found != 0 && *static_cast<int*>(most) == std::numeric_limits<int>::max(),
            "[mpi] this MPI has tags up to {}; {} are needed",
            found != 0 ? *static_cast<int*>(most) : 0, std::numeric_limits<int>::max());
  }
  ~MpiWire() override {
    if (!leaks_ && !MpiLibrary::finalized()) MPI_Comm_free(&comm_);
  }

  int worker() const override { return place_.worker; }
  int workers() const override { return place_.workers; }
  std::unique_ptr<Transfer> send(int to, std::uint64_t tag,
                                 std::span<const std::byte> data) override {
    auto transfer = std::make_unique<MpiTransfer>(interrupted_, leaks_, to, true);
    transfer->check_error(MPI_Isend(data.data(), count_of(data), MPI_BYTE, to, tag_of_mpi(tag),
                                    comm_, &transfer->request()));
    return transfer;
  }
  std::unique_ptr<Transfer> receive(int from, std::uint64_t tag,
                                    std::span<std::byte> data) override {
    auto transfer = std::make_unique<MpiTransfer>(interrupted_, leaks_, from, false);
    transfer->check_error(MPI_Irecv(data.data(), count_of(data), MPI_BYTE, from, tag_of_mpi(tag),
                                    comm_, &transfer->request()));
    return transfer;
  }
  void interrupt() override { interrupted_ = true; }

 private:
  static int tag_of_mpi(std::uint64_t tag) { return static_cast<int>(tag & 0x7FFFFFFF); }
  static int count_of(std::span<const std::byte> data) {
    ensure(data.size() <= std::size_t{std::numeric_limits<int>::max()},
           "[mpi] a message of {} bytes", data.size());
    return static_cast<int>(data.size());
  }

  MpiPlace place_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::atomic<bool> interrupted_ = false;
  std::atomic<bool> leaks_ = false;
};

}  // namespace

bool has_mpi() {
  return true;
}

MpiPlace mpi_place() {
  MpiLibrary::use();
  MpiPlace place;
  MPI_Comm_rank(MPI_COMM_WORLD, &place.worker);
  MPI_Comm_size(MPI_COMM_WORLD, &place.workers);
  return place;
}

MakeWire mpi_wires(std::chrono::milliseconds timeout) {
  require(timeout.count() > 0, "[mpi] the timeout must be positive, not {} ms", timeout.count());
  return [timeout](std::uint64_t) -> std::unique_ptr<Wire> {
    return std::make_unique<MpiWire>(timeout);
  };
}

}  // namespace lockstep
