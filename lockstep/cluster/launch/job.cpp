#include "lockstep/cluster/launch/job.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lockstep/cluster/launch/secret.h"
#include "lockstep/cluster/launch/settings.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kKillLimit = 5s;  // how long killing may take on another host

// What has happened: a kind, and the worker that it happened to.
enum class Kind : std::uint32_t { Ended, Out, Err, Signal, Report };
std::uint64_t event_of(Kind kind, int worker = 0) {
  return std::uint64_t{static_cast<std::uint32_t>(kind)} << 32U |
         static_cast<std::uint32_t>(worker);
}
Kind kind_of(std::uint64_t event) {
  return static_cast<Kind>(event >> 32U);
}

// Fills a new pipe, which nobody reads yet.
void fill(Pipe& pipe, const std::string& text) {
  if (text.size() > 4096) fcntl(pipe.write.get(), F_SETPIPE_SZ, static_cast<int>(text.size()));
  fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  const ssize_t count = write(pipe.write.get(), text.data(), text.size());
  require(count == std::ssize(text),
          "the program's arguments and --env have {} bytes together: too long to be sent over ssh",
          text.size());
}

int milliseconds_until(std::chrono::steady_clock::time_point when) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(when - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1e3);
}

}  // namespace

Job::Job(const LaunchOptions& options, const Sinks& sinks)
    : options_(options),
      several_hosts_(several_hosts(options.seats)),
      screen_(sinks),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      secret_(make_secret()) {
  if (!epoll_) fail_with_errno("events cannot be awaited");
  watch(signals_.descriptor(), event_of(Kind::Signal));
  watch(reports_->descriptor(), event_of(Kind::Report));
}

Job::~Job() {
  for (const auto& worker : workers_) worker->kill();
  for (const auto& worker : workers_) {
    if (worker->ended()) continue;
    pollfd ended = {.fd = worker->process().ended.get(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, static_cast<int>(std::chrono::milliseconds(kKillLimit).count())) != 1) {
      worker->abandon();
    }
    const pid_t group = worker->process().id;
    Process gone = {.id = group};
    guard_.remove(group);
    reap(gone);
  }
}

void Job::watch(int descriptor, std::uint64_t event) {
  epoll_event wanted = {};
  wanted.events = EPOLLIN;
  wanted.data.u64 = event;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &wanted) != 0) {
    fail_with_errno("an event cannot be awaited");
  }
}

void Job::start() {
  const auto here = std::ranges::find_if(options_.seats, &Seat::here);
  if (here != options_.seats.end()) {
    cores_ = share_cores_here(here->local_workers, options_.cores_per_worker);
    find_program(options_.program.front(), value_in(options_.environment, "PATH"));
  }
  if (!options_.log_folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.log_folder, error);
    require(!error, "--log-dir {}: {}", options_.log_folder, error.message());
  }
  control_ = options_.start_control(
      {.bind = control_bind_address(options_.bind, options_.seats),
       .ports = options_.ports,
       .workers = static_cast<int>(options_.seats.size()),
       .secret = secret_,
       .on_failure = options_.on_failure,
       .heartbeat_timeout = options_.heartbeat_timeout,
       .report = [reports = reports_](ControlReport report) { reports->add(std::move(report)); }});
  result_.ends.resize(options_.seats.size());
  parts_.resize(options_.seats.size());
  workers_.reserve(options_.seats.size());
  for (const Seat& seat : options_.seats) add_worker(seat);
}

void Job::add_worker(const Seat& seat) {
  const auto number = static_cast<std::size_t>(seat.worker);
  auto worker = std::make_unique<LaunchedWorker>(start_worker(seat), screen_);
  if (number < workers_.size()) {
    workers_[number] = std::move(worker);
  } else {
    workers_.push_back(std::move(worker));
  }
  parts_[number] = {.starts = parts_[number].starts + 1};
  const Process& process = workers_[number]->process();
  ++running_;
  watch(process.ended.get(), event_of(Kind::Ended, seat.worker));
  watch(process.out.get(), event_of(Kind::Out, seat.worker));
  watch(process.err.get(), event_of(Kind::Err, seat.worker));
}

LaunchedWorker::Parts Job::start_worker(const Seat& seat) {
  Variables variables = options_.variables;
  const auto set = [&](const char* name, const std::string& value) {
    variables.emplace_back(name, value);
  };
  set("LOCKSTEP_WORKER", std::to_string(seat.worker));
  set("LOCKSTEP_WORKERS", std::to_string(options_.seats.size()));
  set("LOCKSTEP_LOCAL_WORKER", std::to_string(seat.local_worker));
  set("LOCKSTEP_LOCAL_WORKERS", std::to_string(seat.local_workers));
  set("LOCKSTEP_CONTROL", control_->address());
  if (survives()) {
    set("LOCKSTEP_ON_FAILURE", options_.on_failure == OnFailure::Restart ? "restart" : "shrink");
  }
  LaunchedWorker::Parts parts{.seat = seat,
                              .prefix = several_hosts_
                                            ? fmt::format("[{}:{}] ", seat.host, seat.worker)
                                            : fmt::format("[{}] ", seat.worker),
                              .process = {},
                              .input = {},
                              .log = open_log(seat.worker)};
  parts.process = seat.here() ? start_here(seat, std::move(variables))
                              : start_over_ssh(seat, std::move(variables), parts.input);
  return parts;
}

Process Job::start_here(const Seat& seat, Variables variables) {
  const CoreShare& share = cores_[static_cast<std::size_t>(seat.local_worker)];
  Pipe secret;
  fill(secret, secret_ + "\n");
  variables.emplace_back("LOCKSTEP_CORES", std::to_string(share.cores));
  variables.emplace_back("LOCKSTEP_SECRET_FD", std::to_string(secret.read.get()));
  return start_process(
      {.program = find_program(options_.program.front(), value_in(options_.environment, "PATH")),
       .arguments = options_.program,
       .environment = merged(options_.environment, variables),
       .affinity = share.affinity,
       .inherited = secret.read.get(),
       .guard = options_.outlived ? -1 : guard_.descriptor(),
       .outlives = options_.outlived});
}

// ssh ends by itself when its input does, and tells the other host before; hence it is not guarded.
Process Job::start_over_ssh(const Seat& seat, Variables variables, Descriptor& input) {
  variables.emplace_back("LOCKSTEP_SECRET_FD", std::to_string(kRemoteSecret));
  Pipe pipe;
  fill(pipe, remote_input({.seat = seat,
                           .folder = options_.folder,
                           .program = options_.program,
                           .variables = std::move(variables),
                           .cores = options_.cores_per_worker,
                           .outlives = options_.outlived,
                           .secret = secret_}));
  const std::vector<std::string> words = ssh_words(options_.ssh, seat.host);
  Process process =
      start_process({.program = find_program(words.front(), value_in(options_.environment, "PATH")),
                     .arguments = words,
                     .environment = options_.environment,
                     .input = pipe.read.get()});
  input = std::move(pipe.write);
  return process;
}

Descriptor Job::open_log(int worker) const {
  if (options_.log_folder.empty()) return {};
  const std::string file = fmt::format("{}/worker-{}.log", options_.log_folder, worker);
  const bool again = parts_[static_cast<std::size_t>(worker)].starts > 0;
  Descriptor log(
      open(file.c_str(), O_WRONLY | O_CREAT | (again ? O_APPEND : O_TRUNC) | O_CLOEXEC, 0666));
  require(static_cast<bool>(log), "--log-dir: {} cannot be written: {}", file,
          std::generic_category().message(errno));
  return log;
}

JobResult Job::run() {
  std::array<epoll_event, 256> events;
  while (running_ > 0) {
    const int count =
        epoll_wait(epoll_.get(), events.data(), std::ssize(events), milliseconds_to_wait());
    if (count < 0 && errno != EINTR) fail_with_errno("events cannot be awaited");
    // Ends come first, in the order in which they happened: what other workers wrote at the same
    // time may be a consequence; and before them what the control plane tells about their cause.
    for (const ControlReport& report : reports_->take()) heard(report);
    const auto begin = events.begin();
    const auto end = begin + std::max(count, 0);
    const auto is_end = [](const epoll_event& e) { return kind_of(e.data.u64) == Kind::Ended; };
    std::stable_partition(begin, end, is_end);
    std::for_each(begin, end, [&](const epoll_event& event) { handle(event.data.u64); });
    decide_overdue();
    if (deadline_ && Clock::now() >= *deadline_) deadline_passed();
  }
  screen_.clear_progress();
  if (result_.cause.empty() && first_follower_ >= 0) {
    const LaunchedWorker& worker = *workers_[static_cast<std::size_t>(first_follower_)];
    failed_first(first_follower_, worker.how_it_ended(), worker.end().exit_code());
  }
  say_what_followed();
  return result_;
}

void Job::handle(std::uint64_t event) {
  const auto worker = static_cast<std::uint32_t>(event);
  switch (kind_of(event)) {
    case Kind::Ended:
      worker_ended(*workers_[worker]);
      break;
    case Kind::Out:
      workers_[worker]->read(Screen::Stream::Out);
      break;
    case Kind::Err:
      workers_[worker]->read(Screen::Stream::Err);
      break;
    case Kind::Signal:
      for (int signal = signals_.next(); signal != 0; signal = signals_.next()) signal_came(signal);
      break;
    case Kind::Report:
      for (const ControlReport& report : reports_->take()) heard(report);
      break;
  }
}

void Job::worker_ended(LaunchedWorker& worker) {
  if (worker.ended()) return;
  if (worker.seat().here()) guard_.remove(worker.process().id);
  worker.finish();
  --running_;
  if (worker.log_failure() != 0) {
    say(fmt::format("the log of worker {} is incomplete: {}", worker.seat().worker,
                    std::generic_category().message(worker.log_failure())));
  }
  const int number = worker.seat().worker;
  const End& end = worker.end();
  result_.ends[static_cast<std::size_t>(number)] = end;
  if (result_.first_failure == number && !end.good()) result_.exit_code = end.exit_code();
  if (!result_.cause.empty()) {
    followers_ += number != result_.first_failure ? 1 : 0;
    return;
  }
  if (end.good()) return give_up_newcomers();
  if (as_asked(end)) {
    if (result_.exit_code == 0) result_.exit_code = end.exit_code();
    return;
  }
  ended_badly(worker);
}

void Job::ended_badly(LaunchedWorker& worker) {
  Part& part = parts_[static_cast<std::size_t>(worker.seat().worker)];
  const std::optional<bool> goes_on = goes_on_without(worker);
  part.undecided = !goes_on.has_value();
  if (!goes_on) {
    ++running_;  // until that is known
    if (const auto limit = control_->reports_within()) part.decide_by = Clock::now() + *limit;
    return;
  }
  if (*goes_on) return go_on_without(worker);
  const int number = worker.seat().worker;
  if (culprit_ >= 0 && culprit_ != number &&
      !workers_[static_cast<std::size_t>(culprit_)]->ended()) {
    if (first_follower_ < 0) first_follower_ = number;
    ++followers_;
    worker.hold_back_errors();
    return;
  }
  failed_first(worker.seat().worker, worker.how_it_ended(), worker.end().exit_code());
  for (const std::string& line : worker.last_errors()) {
    screen_.line(Screen::Stream::Err, "    ", line);
  }
}

std::optional<bool> Job::goes_on_without(const LaunchedWorker& worker) {
  if (!survives() || phase_ != Phase::Running) return false;
  const Part& part = parts_[static_cast<std::size_t>(worker.seat().worker)];
  // Who has ended well has done its part: nobody would go on with a worker that is started again.
  const bool restart = options_.on_failure == OnFailure::Restart;
  const auto done = [&](const auto& other) { return other->ended() && other->end().good(); };
  if (restart && std::ranges::any_of(workers_, done)) return false;
  if (part.lost) return true;
  // A program that ends itself with an error would do so again.
  const bool killed = worker.end().signal != 0;
  if (!control_->reports()) return killed;
  if (part.joined) return std::nullopt;
  return control_->reports_within().has_value() && killed;
}

int Job::milliseconds_to_wait() const {
  std::optional<Clock::time_point> first = deadline_;
  for (const Part& part : parts_) {
    if (part.undecided && part.decide_by && (!first || *part.decide_by < *first)) {
      first = part.decide_by;
    }
  }
  return first ? milliseconds_until(*first) : -1;
}

void Job::decide_overdue() {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (!part.undecided || !part.decide_by || Clock::now() < *part.decide_by) continue;
    part.joined = false;
    --running_;
    ended_badly(*workers_[i]);
  }
}

void Job::go_on_without(const LaunchedWorker& worker) {
  const Seat seat = worker.seat();
  const Part& part = parts_[static_cast<std::size_t>(seat.worker)];
  const bool restart = options_.on_failure == OnFailure::Restart;
  const std::string cause = part.cause.empty() ? worker.how_it_ended() : part.cause;
  result_.lost.push_back({.worker = seat.worker, .cause = cause});
  say(fmt::format("{}; {}", cause,
                  restart ? "it is started again, and the others go on" : "the others go on"));
  if (restart) return add_worker(seat);
  for (const auto& other : workers_) {
    if (other->ended()) continue;
    other->lead();  // the first that is left is the chief now
    break;
  }
}

void Job::give_up_newcomers() {
  if (options_.on_failure != OnFailure::Restart || phase_ != Phase::Running) return;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].starts < 2 || parts_[i].took_part || workers_[i]->ended()) continue;
    const auto number = static_cast<int>(i);
    const auto lost = std::ranges::find(result_.lost, number, &LostWorker::worker);
    workers_[i]->kill();
    return failed_first(number, fmt::format("{}; by then others had done their part", lost->cause),
                        1);
  }
}

// Whether a worker ended because of the signal that was passed on, or because it was killed here.
bool Job::as_asked(const End& end) const {
  const int signal = result_.stopped_by;
  return signal != 0 &&
         (end.exit_code() == 128 + signal || (phase_ >= Phase::Killing && end.signal == SIGKILL));
}

void Job::failed_first(int worker, const std::string& cause, int exit_code) {
  result_.first_failure = worker;
  result_.cause = cause;
  result_.exit_code = exit_code;
  say(cause);
  for (const auto& other : workers_) {
    if (other->seat().worker != worker) other->hold_back_errors();
    if (phase_ == Phase::Running || phase_ == Phase::Failing) other->signal(SIGTERM);
  }
  if (phase_ == Phase::Running) enter(Phase::Failing, options_.grace);
}

void Job::heard(const ControlReport& report) {
  const bool known = report.worker >= 0 && report.worker < std::ssize(workers_);
  const auto number = static_cast<std::size_t>(known ? report.worker : 0);
  Part& part = parts_[number];
  if (known && report.kind == ControlReport::Kind::Joined) part.joined = part.took_part = true;
  if (known && report.kind == ControlReport::Kind::Left) part.joined = false;
  if (report.kind == ControlReport::Kind::Failed) {
    const std::string who =
        known ? fmt::format("worker {} on host {}", report.worker, workers_[number]->seat().host)
              : "the control plane";
    if (known) part.joined = false;
    const bool first = result_.cause.empty() && phase_ == Phase::Running;
    if (report.goes_on && known && first) {
      part.lost = true;
      if (report.running) {
        part.cause = fmt::format("{}: {}", who, report.message);
        workers_[number]->kill();
      }
    } else if (first && known && !report.running && culprit_ < 0) {
      // It is about to end, and says why; the others only follow.
      culprit_ = report.worker;
      enter(Phase::Failing, options_.grace);
      for (const auto& other : workers_) {
        if (other->seat().worker != report.worker) other->hold_back_errors();
      }
    } else if (first && report.running) {
      if (known) workers_[number]->kill();  // it would not hear anything else
      failed_first(known ? report.worker : -1, fmt::format("{}: {}", who, report.message), 1);
    }
  }
  if (!known || part.joined || !part.undecided) return;
  --running_;
  ended_badly(*workers_[number]);
}

void Job::signal_came(int signal) {
  const bool interrupt = signal == SIGINT || signal == SIGTERM;
  interrupts_ += interrupt ? 1 : 0;
  if (result_.stopped_by == 0) result_.stopped_by = signal;
  if (phase_ == Phase::Running) {
    say(fmt::format("{}: the workers are told, and have {} to end; a second SIGINT kills them",
                    signal_text(signal), seconds_text(options_.grace)));
    for (const auto& worker : workers_) worker->signal(signal);
    enter(Phase::Stopping, options_.grace);
  } else if (interrupts_ > 1 && phase_ < Phase::Killing) {
    say(signal_text(signal) + " again: the workers are killed");
    kill_all();
  } else if (interrupt && phase_ < Phase::Killing) {
    say(signal_text(signal) + ": the workers are ending already; a second SIGINT kills them");
  }
}

void Job::deadline_passed() {
  if (phase_ == Phase::Killing) {
    for (const auto& worker : workers_) {
      if (!worker->ended()) worker->abandon();
    }
    enter(Phase::Abandoning, kKillLimit);
    return;
  }
  if (phase_ < Phase::Killing) {
    say(fmt::format("{} of {} workers did not end within {} and are killed", running_,
                    workers_.size(), seconds_text(options_.grace)));
  }
  kill_all();
}

void Job::kill_all() {
  if (phase_ >= Phase::Killing) return;
  for (const auto& worker : workers_) worker->kill();
  enter(Phase::Killing, kKillLimit);
}

void Job::enter(Phase phase, std::chrono::milliseconds limit) {
  phase_ = phase;
  deadline_ = Clock::now() + limit;
}

void Job::say(const std::string& sentence) {
  screen_.line(Screen::Stream::Err, "lockstep: ", sentence);
}

void Job::say_what_followed() {
  if (followers_ == 0) return;
  say(fmt::format("{} other worker{} ended after that; {}", followers_, followers_ == 1 ? "" : "s",
                  options_.log_folder.empty()
                      ? std::string("--log-dir DIR keeps what all workers write")
                      : fmt::format("what they wrote is in {}", options_.log_folder)));
}

JobResult run_job(const LaunchOptions& options, const Sinks& sinks) {
  require(!options.program.empty(), "name the program that the workers run, behind --");
  Job job(options, sinks);
  job.start();
  return job.run();
}

}  // namespace lockstep::launch
