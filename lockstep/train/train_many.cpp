// train_many: the checks before anything starts, and one thread per device that takes job after
// job. These threads only wait for their replica and read its input, so they are not pinned to a
// core: only the replica's own thread is.
#include "lockstep/train/train_many.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/train/job_queue.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

void name_jobs(std::vector<TrainJob>& jobs) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::string& name = jobs[i].name;
    if (name.empty()) name = fmt::format("model {}", i + 1);
    const auto [place, is_new] = places.try_emplace(name, i);
    require(is_new, "[train_many] jobs {} and {} are both called '{}': name one of them otherwise",
            place->second + 1, i + 1, name);
  }
}

void expect_ready(const TrainJob& job) {
  const ModelImpl& impl = impl_of(job.model);
  require(
      impl.compiled,
      "[train_many] the model of '{}' is not compiled: call compile({{.optimizer = ..., .loss = "
      "...}}) first",
      job.name);
  require(!impl.progress, "[train_many] fit is already running on the model of '{}'", job.name);
  require(!impl.options.strategy.defined() && impl.options.device == nullptr,
          "[train_many] the model of '{}' is compiled for {}: compile it without; train_many gives "
          "it a device",
          job.name, impl.options.strategy.defined() ? "a strategy" : "a device");
}

// Which job owns each object that its thread changes during training and no other thread may use.
class Owners {
 public:
  // UsageError if another job already owns it. The same job may claim it several times.
  void claim(const void* what, const TrainJob& job, const std::string& name) {
    const auto [place, is_new] = owners_.try_emplace(what, &job);
    require(is_new || place->second == &job,
            "[train_many] the jobs '{}' and '{}' have the same {}: they are trained at the same "
            "time, so give each its own",
            place->second->name, job.name, name);
  }
  void claim_layers(const LayerBase& layer, const TrainJob& job) {
    claim(&layer, job, fmt::format("layer '{}'", layer.name()));
    for (const Layer& child : layer.children()) claim_layers(child.base(), job);
  }

 private:
  std::map<const void*, const TrainJob*> owners_;
};

void expect_independent(const std::vector<TrainJob>& jobs) {
  Owners owners;
  for (const TrainJob& job : jobs) {
    const ModelImpl& impl = impl_of(job.model);
    owners.claim(&impl, job, "model");
    owners.claim_layers(*impl.network, job);
    owners.claim(impl.options.optimizer.iterations().get(), job, "optimizer");
    for (const CallbackRef& callback : job.fit.callbacks) {
      if (callback != nullptr) owners.claim(callback.get(), job, "callback");
    }
  }
}

// One world per device, with the thread that runs it; no more than there are jobs.
std::vector<std::shared_ptr<World>> make_devices(const TrainManyOptions& options,
                                                 std::size_t jobs) {
  require(options.logical_cpus >= 0, "[train_many] logical_cpus is {}; it must not be negative",
          options.logical_cpus);
  std::vector<std::string> names = options.devices;
  if (names.empty()) {
    const std::size_t most = options.logical_cpus > 0
                                 ? static_cast<std::size_t>(options.logical_cpus)
                                 : available_cores().size();
    for (std::size_t i = 0; i < std::min(most, jobs); ++i)
      names.push_back(fmt::format("cpu:{}", i));
  }
  require(std::set(names.begin(), names.end()).size() == names.size(),
          "[train_many] a device is named twice in {}", fmt::join(names, ", "));
  const int cpus = options.logical_cpus > 0 ? options.logical_cpus : logical_cpus_for(names);
  std::vector<std::shared_ptr<World>> devices;
  for (const std::string& name : names) {
    devices.push_back(
        std::make_shared<World>(WorldOptions{.devices = {name}, .logical_cpus = cpus}));
  }
  if (devices.size() > jobs) devices.resize(jobs);
  return devices;
}

std::vector<std::string> names_of(std::span<const TrainJob> jobs) {
  std::vector<std::string> names;
  for (const TrainJob& job : jobs) names.push_back(job.name);
  return names;
}

std::vector<std::string> names_of(std::span<const std::shared_ptr<World>> devices) {
  std::vector<std::string> names;
  for (const auto& device : devices) names.push_back(device->device(0).name());
  return names;
}

// Names of the losses and metrics of the last epochs, in the order in which they appear.
std::vector<std::string> numbers_of(std::span<const TrainResult> results) {
  std::vector<std::string> names;
  for (const TrainResult& result : results) {
    if (!result.history || result.history->epochs.empty()) continue;
    for (const auto& [name, value] : result.history->epochs.back().logs.items()) {
      const bool elsewhere = name == "lr" || name == "seconds" || name == "samples_per_s";
      if (!elsewhere && std::ranges::count(names, name) == 0) names.push_back(name);
    }
  }
  return names;
}

// A number in a table: four decimals, or scientific if it is very small or large.
std::string cell_of(const std::optional<double>& value) {
  if (!value) return "-";
  const double size = std::abs(*value);
  const bool plain = size == 0 || !std::isfinite(size) || (size >= 1e-3 && size < 1e6);
  return plain ? fmt::format("{:.4f}", *value) : fmt::format("{:.3e}", *value);
}

// Replaces control characters: a name or message must fit in one line of the table.
std::string on_one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20; }, ' ');
  return text;
}

// Counts characters, not bytes, as fmt does when it pads a column.
std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

struct TableLine {
  std::vector<std::string> cells;
  std::string error = {};  // replaces the cells after name and device
};

constexpr std::size_t kTextCells = 2;  // name and device, left-aligned; numbers are right-aligned

TableLine line_of(const TrainResult& result, std::span<const std::string> numbers) {
  TableLine line{.cells = {on_one_line(result.name), result.device}};
  if (!result.history) {
    line.error = fmt::format("failed: {}", on_one_line(result.error));
    return line;
  }
  const std::vector<EpochLog>& epochs = result.history->epochs;
  const Logs last = epochs.empty() ? Logs() : epochs.back().logs;
  line.cells.push_back(fmt::format("{}", epochs.size()));
  for (const std::string& name : numbers) line.cells.push_back(cell_of(last.find(name)));
  const std::optional<double> rate = last.find("samples_per_s");
  line.cells.push_back(rate ? fmt::format("{:.0f}", *rate) : "-");
  line.cells.push_back(fmt::format("{:.1f}", result.seconds));
  return line;
}

// One call of train_many. However it ends, all its threads are joined.
class Run {
 public:
  Run(std::vector<TrainJob> jobs, std::vector<std::shared_ptr<World>> devices)
      : jobs_(std::move(jobs)),
        devices_(std::move(devices)),
        board_(names_of(jobs_), names_of(devices_)) {}
  ~Run() {
    board_.abandon();
    join();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  std::vector<TrainResult> run(const TrainManyOptions& options) {
    threads_.reserve(devices_.size());
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      threads_.emplace_back([this, d] { serve(d); });
    }
    board_.watch(options.progress, options.terminal);
    join();
    return board_.results();
  }

 private:
  void join() noexcept {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void serve(std::size_t device) noexcept {
    while (const std::optional<std::size_t> job = board_.take(device)) {
      try {
        board_.end_well(*job, train(*job, devices_[device]));
      } catch (...) {
        board_.end_badly(*job, std::current_exception());
      }
    }
  }

  History train(std::size_t job, const std::shared_ptr<World>& device) {
    Model& model = jobs_[job].model;
    place(impl_of(model), device);
    FitOptions options = jobs_[job].fit;
    options.verbose = 0;  // the queue shows all jobs
    options.callbacks.push_back(board_.callback(job));
    return model.fit(jobs_[job].batches, options);
  }

  // One at a time: models that a Function trained share the session that they move from.
  void place(ModelImpl& impl, const std::shared_ptr<World>& device) {
    const std::lock_guard lock(placing_);
    impl.move_to(std::make_shared<Session>(SessionOptions{.world = device,
                                                          .device = nullptr,
                                                          .kernels = impl.options.kernels,
                                                          .seed = impl.options.seed}));
  }

  std::vector<TrainJob> jobs_;
  std::vector<std::shared_ptr<World>> devices_;
  JobQueue board_;
  std::mutex placing_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::vector<TrainResult> train_many(std::vector<TrainJob> jobs, const TrainManyOptions& options) {
  require(!jobs.empty(), "[train_many] there are no jobs");
  name_jobs(jobs);
  for (const TrainJob& job : jobs) expect_ready(job);
  expect_independent(jobs);
  std::vector<std::shared_ptr<World>> devices = make_devices(options, jobs.size());
  return Run(std::move(jobs), std::move(devices)).run(options);
}

std::string table(std::span<const TrainResult> results) {
  const std::vector<std::string> numbers = numbers_of(results);
  TableLine head{.cells = {"name", "device", "epochs"}};
  head.cells.insert(head.cells.end(), numbers.begin(), numbers.end());
  head.cells.insert(head.cells.end(), {"samples/s", "seconds"});
  std::vector<TableLine> lines = {head};
  for (const TrainResult& result : results) lines.push_back(line_of(result, numbers));

  std::vector<std::size_t> widths(head.cells.size(), 0);
  for (const TableLine& line : lines) {
    for (std::size_t i = 0; i < line.cells.size(); ++i) {
      widths[i] = std::max(widths[i], columns_of(line.cells[i]));
    }
  }
  std::string text;
  for (const TableLine& line : lines) {
    for (std::size_t i = 0; i < line.cells.size(); ++i) {
      if (i > 0) text += "  ";
      text += i < kTextCells ? fmt::format("{:<{}}", line.cells[i], widths[i])
                             : fmt::format("{:>{}}", line.cells[i], widths[i]);
    }
    if (!line.error.empty()) text += "  " + line.error;
    text += '\n';
  }
  return text;
}

}  // namespace lockstep
