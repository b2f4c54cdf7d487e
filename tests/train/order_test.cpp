// Instructions of a plan that touch the same memory must be ordered on a device with several
// streams. The waits are logged while a training step is captured, and every pair of instructions
// is compared. Nothing is computed.
#include <cstdlib>
#include <map>

#include <gtest/gtest.h>

#include "lockstep/distribute/bucket.h"
#include "lockstep/distribute/place.h"
#include "lockstep/graph/ops/state.h"
#include "train/golden.h"

namespace lockstep::golden {
namespace {

struct Touched {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  bool written = false;

  bool conflicts(const Touched& other) const {
    return (written || other.written) && begin < other.begin + other.bytes &&
           other.begin < begin + bytes;
  }
};

// An issued instruction: its stream, its number in that stream, and how many instructions of each
// stream are complete before it starts.
struct Issued {
  std::string what;
  std::vector<Touched> touched;
  int stream = 0;
  int number = 0;
  std::map<int, int> over;

  bool behind(const Issued& other) const {
    const auto found = over.find(other.stream);
    return found != over.end() && found->second >= other.number;
  }
};

class NotingDevice final : public Device {
 public:
  class NotingStream final : public Stream {
   public:
    NotingStream(NotingDevice& device, int number) : device_(device), number_(number) {}
    void synchronize() override {}
    void wait_for(Stream& other) override { take_over(static_cast<NotingStream&>(other).over_); }
    void wait_for(Event& event) override;
    void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
      note("copy", {{from, bytes, false}, {to, bytes, true}});
    }
    void stamp(std::int64_t* to) override {
      note("stamp", {{reinterpret_cast<const std::byte*>(to), sizeof(*to), true}});
    }
    std::unique_ptr<Recording> record(const std::function<void()>& f) override {
      device_.issued_.clear();
      for (NotingStream* stream : device_.streams_) stream->over_.clear();
      f();
      for (const NotingStream* stream : device_.streams_) {
        for (const auto& [of, count] : stream->over_) {
          EXPECT_GE(over_[of], count) << "stream " << stream->number_ << " is not waited for";
        }
      }
      return std::make_unique<Nothing>();
    }
    void note(std::string what, std::vector<Touched> touched) {
      const int number = over_[number_] + 1;
      device_.issued_.push_back({std::move(what), std::move(touched), number_, number, over_});
      over_[number_] = number;
    }

    const std::map<int, int>& over() const { return over_; }

   private:
    void take_over(const std::map<int, int>& others) {
      for (const auto& [stream, count] : others) over_[stream] = std::max(over_[stream], count);
    }
    struct Nothing final : Recording {
      void launch(Stream&) override {}
    };
    NotingDevice& device_;
    const int number_;
    std::map<int, int> over_;  // by stream
  };

  struct NotingEvent final : Event {
    void record(Stream& stream) override { over = static_cast<NotingStream&>(stream).over(); }
    bool reached() override { return true; }
    void wait() override {}
    double ms_since(const Event&) override { return 0; }
    std::map<int, int> over;  // by stream
  };

  DeviceKind kind() const override { return DeviceKind::Cuda; }
  const std::string& name() const override { return name_; }
  std::unique_ptr<Stream> make_stream() override {
    auto stream = std::make_unique<NotingStream>(*this, static_cast<int>(streams_.size()));
    streams_.push_back(stream.get());
    return stream;
  }
  std::unique_ptr<Event> make_event(bool) override { return std::make_unique<NotingEvent>(); }
  void make_current() override {}
  void pin_thread() override {}
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    host().copy(to, from, bytes);
  }
  std::shared_ptr<Buffer> allocate_host(std::size_t bytes) override {
    return host().allocate(bytes);
  }
  const std::vector<Issued>& issued() const { return issued_; }

 private:
  std::byte* allocate_bytes(std::size_t bytes) override {
    return static_cast<std::byte*>(std::calloc(bytes / 64 + 1, 64));
  }
  void free_bytes(std::byte* data, std::size_t) override { std::free(data); }

  std::string name_ = "noting:0";
  std::vector<NotingStream*> streams_;
  std::vector<Issued> issued_;
};

void NotingDevice::NotingStream::wait_for(Event& event) {
  take_over(static_cast<NotingEvent&>(event).over);
}

// Logs the memory that a node touches instead of computing it.
class NotingKernel final : public Kernel {
 public:
  NotingKernel(const KernelCall& call, std::size_t workspace)
      : what_(fmt::format("{} {}", op_def(call.node.op).name, call.node.name)),
        workspace_(workspace),
        finds_(call.node.op == Op::SparseCrossEntropy ||
               call.node.op == Op::SparseCrossEntropyGrad),
        touches_fault_(finds_ || call.node.op == Op::Update) {
    const std::vector<ValueId> changed = changed_variables(call.node);
    for (const ValueId id : call.node.inputs) {
      inputs_.push_back({nullptr, call.graph.bytes(id), std::ranges::count(changed, id) > 0});
    }
    for (const ValueId id : call.node.outputs) {
      outputs_.push_back({nullptr, call.graph.bytes(id), true});
    }
  }
  void bind(const Binding& binding) override {
    for (std::size_t i = 0; i < inputs_.size(); ++i) inputs_[i].begin = binding.inputs[i];
    for (std::size_t i = 0; i < outputs_.size(); ++i) outputs_[i].begin = binding.outputs[i];
    if (binding.fault != nullptr && touches_fault_) {
      outputs_.push_back(
          {reinterpret_cast<const std::byte*>(binding.fault), sizeof(Fault), finds_});
    }
    if (workspace_ > 0) outputs_.push_back({binding.workspace, workspace_, true});
  }
  void run(Stream& stream) override {
    std::vector<Touched> touched = inputs_;
    touched.insert(touched.end(), outputs_.begin(), outputs_.end());
    static_cast<NotingDevice::NotingStream&>(stream).note(what_, std::move(touched));
  }

 private:
  const std::string what_;
  const std::size_t workspace_;
  const bool finds_;
  const bool touches_fault_;
  std::vector<Touched> inputs_;
  std::vector<Touched> outputs_;
};

// Logs the memory that a collective touches.
class NotingSum final : public Collective {
 public:
  explicit NotingSum(std::span<std::byte> data) : data_(data) {}
  void start() override {}
  bool poll() override { return true; }
  void await_ranks() override {}
  void finish() override {}
  void issue(Stream& stream) override {
    static_cast<NotingDevice::NotingStream&>(stream).note("sum",
                                                          {{data_.data(), data_.size(), true}});
  }

 private:
  std::span<std::byte> data_;
};

class NotingRank final : public Communicator {
 public:
  explicit NotingRank(bool on_one_device) : on_one_device_(on_one_device) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  int max_in_flight() const override { return 1; }
  std::unique_ptr<Collective> all_reduce(std::span<std::byte> data, DType) override {
    return std::make_unique<NotingSum>(data);
  }
  std::unique_ptr<Collective> reduce_scatter(std::span<std::byte> data, DType) override {
    return std::make_unique<NotingSum>(data);
  }
  std::unique_ptr<Collective> all_gather(std::span<std::byte> data, DType) override {
    return std::make_unique<NotingSum>(data);
  }
  std::unique_ptr<Collective> broadcast(std::span<std::byte> data, int) override {
    return std::make_unique<NotingSum>(data);
  }
  SumOrder sum_order() const override { return SumOrder::RankOrder; }
  void abort(const Failure&) override {}
  bool on_one_device() const override { return on_one_device_; }

 private:
  bool on_one_device_;
};

// One kernel per op, all with this much workspace. A workspace makes more instructions wait for one
// another.
template <std::size_t kWorkspace>
KernelLibrary noting_kernels() {
  KernelLibrary library;
  for (int op = 0; op <= static_cast<int>(Op::Reorder); ++op) {
    library.add(static_cast<Op>(op),
                {.name = "noting",
                 .make = [](const KernelCall& call) -> std::unique_ptr<Kernel> {
                   return std::make_unique<NotingKernel>(call, kWorkspace);
                 },
                 .workspace_bytes = [](const KernelCall&) { return kWorkspace; },
                 .fuses_activation = [](const KernelCall&, std::string_view) { return true; }});
  }
  return library;
}

void expect_ordered(const std::vector<Issued>& issued) {
  for (std::size_t later = 0; later < issued.size(); ++later) {
    for (std::size_t earlier = 0; earlier < later; ++earlier) {
      if (issued[later].behind(issued[earlier])) continue;
      for (const Touched& a : issued[earlier].touched) {
        for (const Touched& b : issued[later].touched) {
          EXPECT_FALSE(a.conflicts(b))
              << issued[later].what << " does not wait for " << issued[earlier].what;
        }
      }
    }
  }
}

// The instructions issued for a training step, and the number of streams.
struct Recorded {
  NotingDevice device;
  int streams = 0;

  // `bucket_bytes`: size of the gradient buckets; 0: one all-reduce of all gradients.
  Recorded(const GoldenModel& model, const GoldenOptimizer& rule, const KernelLibrary& library,
           const ExecutorOptions& options = {}, std::size_t bucket_bytes = 0) {
    const std::shared_ptr<Network> network = model.make();
    const ValueType x = {DType::F32, model.name == "mlp" ? Shape{8, 20} : Shape{4, 8, 8, 3}};
    Graph graph = trace(*network, rule.make(), x, {DType::I32, {x.shape[0]}});
    if (bucket_bytes > 0) {
      const BucketSizes sizes{.first_bytes = bucket_bytes, .bytes = bucket_bytes};
      PlacePass({.ranks = 2}).run(graph);
      BucketPass({.ranks = 2, .sizes = sizes}).run(graph);
    }
    optimize(graph, library);
    State state(device, 0);
    const Executor executor(make_plan(std::move(graph), library), library, state, options);
    EXPECT_GE(device.issued().size(), executor.plan().instructions.size());
    streams = std::ranges::max(device.issued(), {}, &Issued::stream).stream + 1;
    expect_ordered(device.issued());
  }
};

using OrderCase = std::tuple<std::size_t, std::size_t>;  // indices into the lists
class Order : public ::testing::TestWithParam<OrderCase> {};

TEST_P(Order, StepsThatTouchTheSameMemoryHaveOne) {
  const auto [model, rule] = GetParam();
  for (const KernelLibrary& library : {noting_kernels<0>(), noting_kernels<200>()}) {
    const Recorded alone(kModels[model], kOptimizers[rule], library);
    const bool small = kModels[model].name == "mlp";
    EXPECT_TRUE(!small || alone.streams == 4) << "nothing runs beside anything";
  }
}

TEST_P(Order, SumsOverReplicasHaveOneToo) {
  const auto [model, rule] = GetParam();
  const KernelLibrary library = noting_kernels<0>();
  // One all-reduce of all gradients, and one bucket per gradient, which releases memory earlier.
  for (const auto& [on_one_device, bucket_bytes] :
       {std::pair{false, 0}, std::pair{true, 0}, std::pair{false, 1}, std::pair{true, 1}}) {
    NotingRank rank(on_one_device);
    Recorder recorder;
    const Recorded recorded(kModels[model], kOptimizers[rule], library,
                            {.recorder = &recorder, .compute_comm = &rank, .gradient_comm = &rank},
                            static_cast<std::size_t>(bucket_bytes));
    const auto is_sum = [](const Issued& each) { return each.what == "sum"; };
    const std::vector<Issued>& issued = recorded.device.issued();
    const auto sum = std::ranges::find_if(issued, is_sum);
    ASSERT_NE(sum, issued.end());
    EXPECT_EQ(sum->stream, on_one_device ? 0 : 1);
    EXPECT_EQ(std::ranges::count(issued, "stamp", &Issued::what) % 2, 1) << "pairs, and the end";
    EXPECT_TRUE(!on_one_device || recorded.streams == 1) << "the step is no chain";
  }
}

std::string case_name(const ::testing::TestParamInfo<OrderCase>& info) {
  const auto [model, rule] = info.param;
  return kModels[model].name + "_" + kOptimizers[rule].name;
}

INSTANTIATE_TEST_SUITE_P(, Order,
                         ::testing::Combine(::testing::Range<std::size_t>(0, kModels.size()),
                                            ::testing::Range<std::size_t>(0, kOptimizers.size())),
                         case_name);

}  // namespace
}  // namespace lockstep::golden
