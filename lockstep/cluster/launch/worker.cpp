#include "lockstep/cluster/launch/worker.h"

#include <fmt/core.h>

#include <array>
#include <csignal>
#include <cstring>

#include "lockstep/cluster/launch/remote.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kTail = 10;       // lines of standard error that are kept
constexpr std::uint64_t kInSight = 20;  // lines of a terminal that one certainly sees
constexpr std::size_t kPiece = std::size_t{1} << 16;
constexpr int kMostPieces = 32;    // that a pipe can hold, and some: its writer may have escaped
constexpr int kUnreachable = 255;  // how ssh reports its own failures

// ssh reports a worker that a signal ended as shells do.
End end_over_ssh(End end) {
  const bool signalled = end.signal == 0 && end.code > 128 && end.code <= 128 + SIGRTMAX;
  return signalled ? End{.signal = end.code - 128} : end;
}

std::string signal_meaning(int signal) {
  const char* words = sigdescr_np(signal);
  if (words == nullptr) return fmt::format("signal {}", signal);
  std::string meaning = words;
  if (meaning.size() > 1 && std::islower(static_cast<unsigned char>(meaning[1])) != 0) {
    meaning[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(meaning[0])));
  }
  return fmt::format("signal {} ({})", signal, meaning);
}

}  // namespace

LaunchedWorker::LaunchedWorker(Parts parts, Screen& screen)
    : parts_(std::move(parts)),
      screen_(screen),
      out_([this](const Lines::Line& line) { show(Screen::Stream::Out, line); },
           [this](std::string_view text) { show_progress(Screen::Stream::Out, text); }),
      err_([this](const Lines::Line& line) { show(Screen::Stream::Err, line); },
           [this](std::string_view text) { show_progress(Screen::Stream::Err, text); }) {}

// One piece at a time: the others have their turn before a worker that writes without end.
bool LaunchedWorker::read(Screen::Stream stream) {
  const bool out = stream == Screen::Stream::Out;
  Descriptor& descriptor = out ? parts_.process.out : parts_.process.err;
  if (!descriptor) return false;
  std::array<char, kPiece> buffer;
  const ssize_t count = ::read(descriptor.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
  if (count <= 0) {
    descriptor.close();
    return false;
  }
  const std::string_view text(buffer.data(), static_cast<std::size_t>(count));
  log(text);
  (out ? out_ : err_).add(text);
  return true;
}

void LaunchedWorker::show(Screen::Stream stream, const Lines::Line& line) {
  if (line.progress && !chief()) return;
  if (showed_progress_) screen_.clear_progress();
  showed_progress_ = false;
  const bool error = stream == Screen::Stream::Err;
  if (!(error && errors_held_back_)) screen_.line(stream, parts_.prefix, line.text);
  if (!error) return;
  tail_.emplace_back(line.text);
  if (tail_.size() > kTail) tail_.pop_front();
  tail_shown_ = screen_.lines();
}

void LaunchedWorker::show_progress(Screen::Stream stream, std::string_view text) {
  if (!chief() || (stream == Screen::Stream::Err && errors_held_back_)) return;
  screen_.progress(parts_.prefix, text);
  showed_progress_ = true;
}

void LaunchedWorker::log(std::string_view text) {
  while (parts_.log && !text.empty()) {
    const ssize_t count = write(parts_.log.get(), text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      log_failure_ = errno;
      parts_.log.close();
    }
  }
}

void LaunchedWorker::signal(int number) {
  if (ended()) return;
  if (parts_.seat.here()) {
    parts_.process.signal(number);
  } else if (parts_.input) {
    const std::string line = remote_signal(number);
    // Fails if ssh has just ended; the worker then ends with it.
    static_cast<void>(!write(parts_.input.get(), line.data(), line.size()));
  }
}

void LaunchedWorker::kill() {
  if (ended()) return;
  signal(SIGKILL);
  parts_.input.close();  // the other host kills a worker that does not outlive its launcher
}

void LaunchedWorker::finish() {
  // Pipes hold what the worker wrote before it ended; processes that it has left are killed.
  end_ = reap(parts_.process);
  if (!parts_.seat.here()) end_ = end_over_ssh(end_);
  for (const Screen::Stream stream : {Screen::Stream::Out, Screen::Stream::Err}) {
    for (int i = 0; i < kMostPieces && read(stream); ++i) {
    }
    const bool out = stream == Screen::Stream::Out;
    (out ? out_ : err_).end();
    (out ? parts_.process.out : parts_.process.err).close();
  }
  parts_.process.ended.close();
  parts_.input.close();
  parts_.log.close();
}

std::string LaunchedWorker::how_it_ended() const {
  const Seat& seat = parts_.seat;
  const std::string who = fmt::format("worker {} on host {}", seat.worker, seat.host);
  if (end_.signal != 0) return fmt::format("{} ended with {}", who, signal_meaning(end_.signal));
  if (!seat.here() && end_.code == kUnreachable) {
    return fmt::format(
        "{}: ssh ended with exit code 255: the host is unknown, cannot be reached or refuses, or "
        "the connection was lost",
        who);
  }
  const bool missing = !seat.here() && end_.code == 127;
  return fmt::format("{} ended with exit code {}{}", who, end_.code,
                     missing ? " (is the program there?)" : "");
}

std::deque<std::string> LaunchedWorker::last_errors() const {
  const bool in_sight =
      !errors_held_back_ && screen_.lines() - tail_shown_ + tail_.size() < kInSight;
  return in_sight ? std::deque<std::string>() : tail_;
}

}  // namespace lockstep::launch
