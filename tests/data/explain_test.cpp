// What a running pipeline reports about itself, and how AUTOTUNE uses it.
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "data/positions.h"
#include "lockstep/data/pipeline/explain.h"
#include "lockstep/data/pipeline/node.h"
#include "lockstep/data/pipeline/tuner.h"
#include "lockstep/profile/recorder.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Keeps a core busy for 200 µs: a cost that is the same on every machine.
Element slow(const Element& element) {
  const std::int64_t until = now_ns() + 200'000;
  while (now_ns() < until) {
  }
  return element;
}

Dataset numbers(std::int64_t count) {
  return Dataset::from_tensor_slices({Tensor::of(count_up(count), {count})});
}

const StageReport& stage(const PipelineReport& report, const std::string& name) {
  for (const StageReport& each : report.stages) {
    if (each.name == name) return each;
  }
  throw std::out_of_range(name);
}

TEST(Explain, CountsItemsBytesAndTimeOfEveryStage) {
  const PipelineReport report =
      numbers(64).map(slow, {.name = "slow"}).batch(16).explain({.seconds = 60});
  ASSERT_EQ(report.stages.size(), 3u);
  EXPECT_EQ(report.elements, 4);
  EXPECT_EQ(stage(report, "batch(16)").items, 4);
  EXPECT_EQ(stage(report, "batch(16)").bytes, 64 * 8);
  EXPECT_EQ(stage(report, "map slow").items, 64);
  EXPECT_EQ(stage(report, "tensors").items, 64);
  EXPECT_EQ(stage(report, "tensors").depth, 2);
  EXPECT_GE(stage(report, "map slow").busy_s, 64 * 200e-6);
  // The stages' times do not overlap: on one thread they sum up to at most the whole.
  double busy = 0;
  for (const StageReport& each : report.stages) busy += each.busy_s;
  EXPECT_LE(busy, report.seconds);
}

TEST(Explain, NamesTheBottleneckAndWhatWouldHelp) {
  const PipelineReport one = numbers(64).map(slow, {.name = "slow"}).batch(8).explain();
  EXPECT_EQ(one.limiting, "map slow");
  EXPECT_TRUE(contains(one.advice, one.cores == 1 ? "busy" : ".parallel = AUTOTUNE")) << one.advice;
  EXPECT_TRUE(contains(one.text(), "Bottleneck: map slow"));

  // If the consumer hardly waits, it is the bottleneck, whatever the stages did.
  PipelineReport quick;
  quick.stages.resize(1);
  quick.stages[0].name = "map decode";
  quick.stages[0].busy_s = 9;
  quick.seconds = 10;
  quick.consumer_wait_s = 0.1;
  quick.elements = 100;
  judge(quick);
  EXPECT_EQ(quick.limiting, "the consumer");
  quick.consumer_wait_s = 5;
  judge(quick);
  EXPECT_EQ(quick.limiting, "map decode");

  EXPECT_EQ(numbers(4).iterator()->report().limiting, "nothing yet");
}

TEST(Explain, EachThreadHasItsTrackOfSpans) {
  Recorder recorder;
  // The first two calls wait for each other, so that one of them is on another thread.
  std::latch both(2);
  const auto together = [&](const Element& element) {
    if (element.front().item() < 2) both.arrive_and_wait();
    return element;
  };
  {
    const auto iterator =
        numbers(200)
            .map(together, {.spec = {{DType::I64, {}}}, .parallel = 2, .name = "slow"})
            .batch(10)
            .prefetch(2)
            .with_budget({.cores = 2})
            .iterator({.recorder = &recorder});
    while (iterator->next()) {
    }
  }
  std::size_t spans = 0;
  for (const Track* track : recorder.tracks()) {
    EXPECT_TRUE(track->name().starts_with("input ")) << track->name();
    for (const Span& span : track->spans()) {
      if (std::string_view(span.name) == "map slow") ++spans;
      EXPECT_LE(span.begin_ns, span.end_ns);
    }
  }
  EXPECT_GT(spans, 0u);
}

class Clockwork {
 public:
  explicit Clockwork(int cores = 4,
                     std::shared_ptr<PipelineTuning> tuning = std::make_shared<PipelineTuning>())
      : runtime_({.cores = cores, .memory_bytes = 1000}, host(), nullptr, std::move(tuning)),
        stage_("map") {
    stage_.key = "0 map";
  }

  // A second passes, during which the consumer waits and threads are busy for the given fractions.
  void pass(ThreadTuner& tuner, double waiting, double busy_threads) {
    runtime_.consumer_wait.begin(now_);
    runtime_.consumer_wait.end(now_ + static_cast<std::int64_t>(waiting * 1e9));
    now_ += 1'000'000'000;
    stage_.busy_ns += static_cast<std::int64_t>(busy_threads * 1e9);
    stage_.items += 100;
    stage_.made += 100;
    tuner.look(now_);
  }

  // An element is computed while the consumer waits; then the tuner runs.
  void make(ThreadTuner& tuner, std::int64_t cost_ns) {
    runtime_.consumer_wait.begin(now_);
    now_ += cost_ns;
    runtime_.consumer_wait.end(now_);
    stage_.busy_ns += cost_ns;
    ++stage_.items;
    ++stage_.made;
    tuner.look(now_);
  }

  std::int64_t now_ = 0;
  Runtime runtime_;
  Stage stage_;
};

TEST(Autotune, ThreadsFollowTheConsumerAndSettle) {
  Clockwork clock;
  ThreadTuner tuner(clock.runtime_, clock.stage_, clock.stage_.busy_ns, AUTOTUNE, clock.now_);
  EXPECT_EQ(tuner.threads(), 1);
  clock.pass(tuner, 0.0, 0.5);  // the cost of the first elements is known, and nobody waits
  EXPECT_EQ(tuner.threads(), 1);
  clock.pass(tuner, 0.5, 1.0);
  EXPECT_EQ(tuner.threads(), 2);
  clock.pass(tuner, 0.3, 1.0);  // the consumer waits, but not for this stage
  EXPECT_EQ(tuner.threads(), 2);
  clock.pass(tuner, 0.4, 2.0);
  EXPECT_EQ(tuner.threads(), 4);
  clock.pass(tuner, 0.3, 4.0);  // there are no more cores
  EXPECT_EQ(tuner.threads(), 4);
  clock.pass(tuner, 0.0, 2.9);  // three would be too few
  EXPECT_EQ(tuner.threads(), 4);
  clock.pass(tuner, 0.0, 1.0);
  EXPECT_EQ(tuner.threads(), 3);
  clock.pass(tuner, 0.1, 2.9);  // that was wrong, and is not tried again
  EXPECT_EQ(tuner.threads(), 4);
  clock.pass(tuner, 0.0, 1.0);
  EXPECT_EQ(tuner.threads(), 4);
  ASSERT_EQ(clock.stage_.decisions().size(), 4u);
  EXPECT_TRUE(contains(clock.stage_.decisions()[0], "2 threads: the consumer waited"))
      << clock.stage_.decisions()[0];

  ThreadTuner fixed(clock.runtime_, clock.stage_, clock.stage_.busy_ns, 3, clock.now_);
  clock.pass(fixed, 0.9, 3.0);
  EXPECT_EQ(fixed.threads(), 3);
}

TEST(Autotune, AllThreadsAreBusyAfterTheFirstElements) {
  constexpr std::int64_t kDecoding = 2'000'000;  // ns: a photo
  Clockwork clock(16);
  ThreadTuner tuner(clock.runtime_, clock.stage_, clock.stage_.busy_ns, AUTOTUNE, clock.now_);
  for (int i = 0; i < 4; ++i) clock.make(tuner, kDecoding);
  EXPECT_EQ(tuner.threads(), 16);
  EXPECT_LE(clock.now_, 300'000'000 / 16) << "tuning must not take longer";
  EXPECT_TRUE(contains(clock.stage_.decisions().at(0), "16 threads: the consumer waited"))
      << clock.stage_.decisions()[0];

  Clockwork slow(16);  // one slow element is enough
  ThreadTuner after_one(slow.runtime_, slow.stage_, slow.stage_.busy_ns, AUTOTUNE, slow.now_);
  slow.make(after_one, 100'000'000);
  EXPECT_EQ(after_one.threads(), 16);
}

// The consumer has not received a batch yet: the time it has waited so far counts.
TEST(Autotune, AWaitThatHasNotEndedCounts) {
  Clockwork clock(16);
  clock.now_ = 1;
  clock.runtime_.consumer_wait.begin(clock.now_);
  ThreadTuner tuner(clock.runtime_, clock.stage_, clock.stage_.busy_ns, AUTOTUNE, clock.now_);
  for (int i = 0; i < 4; ++i) {
    clock.now_ += 2'000'000;
    clock.stage_.busy_ns += 2'000'000;
    ++clock.stage_.made;
    tuner.look(clock.now_);
  }
  EXPECT_EQ(clock.runtime_.consumer_wait.ended(), 0);
  EXPECT_EQ(tuner.threads(), 16);
}

// A reader sees the same total just before, while and just after a wait ends.
TEST(Autotune, AWaitThatEndsMeanwhileCountsOnce) {
  constexpr std::int64_t kWait = 1000;
  constexpr int kRounds = 2000;
  WaitClock clock;
  std::atomic<int> begun = 0;
  std::atomic<int> ended = 0;
  std::thread consumer([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (begun < round) std::this_thread::yield();
      clock.end(1 + round * kWait);
      ended = round;
    }
  });
  int wrong = 0;
  for (int round = 1; round <= kRounds; ++round) {
    const std::int64_t now = 1 + round * kWait;
    clock.begin(now - kWait);
    begun = round;
    do {
      if (clock.until(now) != round * kWait) ++wrong;
    } while (ended < round);
  }
  consumer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(clock.ended(), kRounds * kWait);
}

TEST(Autotune, CheapElementsAreNotWorthThreads) {
  Clockwork clock(16);
  ThreadTuner tuner(clock.runtime_, clock.stage_, clock.stage_.busy_ns, AUTOTUNE, clock.now_);
  clock.make(tuner, 400'000);  // the first one, which opens files
  for (int i = 0; i < 5; ++i) clock.make(tuner, 1'000);
  EXPECT_EQ(tuner.threads(), 1);
  Clockwork some(16);
  ThreadTuner few(some.runtime_, some.stage_, some.stage_.busy_ns, AUTOTUNE, some.now_);
  for (int i = 0; i < 5; ++i) some.make(few, 20'000);
  EXPECT_EQ(few.threads(), 4);
}

TEST(Autotune, ThreadsThatOnlyWaitForTheInputAreRemoved) {
  Clockwork clock(16);
  ThreadTuner tuner(clock.runtime_, clock.stage_, clock.stage_.busy_ns, AUTOTUNE, clock.now_);
  for (int i = 0; i < 4; ++i) clock.make(tuner, 2'000'000);
  ASSERT_EQ(tuner.threads(), 16);
  clock.pass(tuner, 0.9, 2.0);
  EXPECT_EQ(tuner.threads(), 3);
}

TEST(Autotune, TheNextPassBeginsWithTheTunedValues) {
  const auto tuning = std::make_shared<PipelineTuning>();
  {
    Clockwork clock(16, tuning);
    ThreadTuner tuner(clock.runtime_, clock.stage_, clock.stage_.busy_ns, AUTOTUNE, clock.now_);
    for (int i = 0; i < 4; ++i) clock.make(tuner, 2'000'000);
    for (int i = 0; i < 3; ++i) clock.pass(tuner, 0.0, 8.0);
    ASSERT_EQ(tuner.threads(), 13);
  }
  Clockwork next(16, tuning);
  ThreadTuner tuner(next.runtime_, next.stage_, next.stage_.busy_ns, AUTOTUNE, next.now_);
  EXPECT_EQ(tuner.threads(), 13);
  Clockwork smaller(4, tuning);
  ThreadTuner fewer(smaller.runtime_, smaller.stage_, smaller.stage_.busy_ns, AUTOTUNE, 0);
  EXPECT_EQ(fewer.threads(), 4) << "no more threads than cores";
  Clockwork fixed(16, tuning);
  ThreadTuner asked(fixed.runtime_, fixed.stage_, fixed.stage_.busy_ns, 2, 0);
  EXPECT_EQ(asked.threads(), 2) << "the user's number";
}

TEST(Autotune, QueuesBeginAsLongAsTheyWereIfTheBudgetAllows) {
  const auto tuning = std::make_shared<PipelineTuning>();
  tuning->set("0 map", {.queue = 8, .element_bytes = 100});
  Clockwork clock(4, tuning);
  {
    BufferTuner tuner(clock.runtime_, clock.stage_, AUTOTUNE);
    EXPECT_EQ(tuner.elements(), 8u);
    EXPECT_EQ(clock.runtime_.reserved(), 600u);
  }
  EXPECT_EQ(clock.runtime_.reserved(), 0u);
  tuning->set("0 map", {.queue = 8, .element_bytes = 1000});
  BufferTuner tuner(clock.runtime_, clock.stage_, AUTOTUNE);
  EXPECT_EQ(tuner.elements(), 2u);
}

TEST(Autotune, TunedValuesAreSavedToAFile) {
  const TemporaryFolder folder;
  PipelineTuning learned;
  learned.set("0 prefetch", {.queue = 8, .element_bytes = 38535168});
  learned.set("0 prefetch/0 batch/0 map read images", {.threads = 16});
  learned.save(fs::path(folder.path()) / "tuning");
  PipelineTuning read;
  ASSERT_TRUE(read.load(fs::path(folder.path()) / "tuning"));
  EXPECT_EQ(read.text(), learned.text());
  EXPECT_EQ(read.of("0 prefetch/0 batch/0 map read images").threads, 16);
  EXPECT_EQ(read.of("0 prefetch").queue, 8);
  EXPECT_EQ(read.of("0 shuffle"), StageTuning());

  EXPECT_FALSE(read.load(fs::path(folder.path()) / "none"));
  const std::string text = learned.text();
  for (std::size_t length = 0; length < text.size(); ++length) {
    PipelineTuning cut;
    const bool whole_lines = cut.read(text.substr(0, length));
    EXPECT_TRUE(!whole_lines || text[length - 1] == '\n') << length;
  }
  EXPECT_FALSE(read.read("lockstep pipeline tuning 1\n-3 threads, queue 0 of 0 bytes: x\n"));
  EXPECT_EQ(read.text(), learned.text()) << "unreadable text changes nothing";
  EXPECT_THROW(learned.save(fs::path(folder.path()) / "no" / "tuning"), DataError);
}

TEST(Autotune, APassBeginsWithTheThreadsOfTheOneBefore) {
  const Dataset dataset =
      numbers(64).map(slow, {.parallel = AUTOTUNE, .name = "slow"}).with_budget({.cores = 3});
  int threads = 0;
  {
    const auto first = dataset.iterator();
    while (first->next()) {
    }
    threads = stage(first->report(), "map slow").threads;
    EXPECT_GT(threads, 1);
  }
  const auto second = dataset.iterator(1);
  EXPECT_EQ(stage(second->report(), "map slow").threads, threads);
  EXPECT_EQ(dataset.tuning()->of("0 map slow").threads, threads);
  const Dataset again =
      numbers(64).map(slow, {.parallel = AUTOTUNE, .name = "slow"}).with_budget({.cores = 3});
  EXPECT_EQ(stage(again.with_tuning(dataset.tuning()).iterator()->report(), "map slow").threads,
            threads);
}

TEST(Autotune, SaysWhyItChangedNothing) {
  Clockwork clock;
  ThreadTuner tuner(clock.runtime_, clock.stage_, clock.stage_.busy_ns, AUTOTUNE, clock.now_);
  clock.pass(tuner, 0.0, 0.3);
  clock.pass(tuner, 0.0, 0.3);
  EXPECT_EQ(tuner.threads(), 1);
  ASSERT_EQ(clock.stage_.decisions().size(), 1u);
  EXPECT_EQ(clock.stage_.decisions()[0],
            "1 thread: the consumer waited 0% of the time, 0.3 threads were busy with 3.00 ms per "
            "element, and there are 4 cores");
}

TEST(Autotune, QueuesGrowWithinTheBudgetAndReleaseIt) {
  Clockwork clock;
  {
    BufferTuner tuner(clock.runtime_, clock.stage_, AUTOTUNE);
    EXPECT_EQ(tuner.elements(), 2u);
    tuner.found_empty();  // it was never full: the producer is slow, so a longer queue is no help
    EXPECT_EQ(tuner.elements(), 2u);
    for (const std::size_t expected : {4, 8, 8}) {
      tuner.put(tuner.elements(), 150);
      tuner.found_empty();
      EXPECT_EQ(tuner.elements(), expected);
    }
    EXPECT_EQ(clock.runtime_.reserved(), 6u * 150);
    EXPECT_TRUE(contains(clock.stage_.decisions().back(), "budget"))
        << clock.stage_.decisions().back();
  }
  EXPECT_EQ(clock.runtime_.reserved(), 0u);
}

// Takes elements until a stage has the given number of threads, or until the data ends. How long
// that takes depends on the machine.
PipelineReport report_with(const Dataset& dataset, const std::string& name, int threads) {
  const auto iterator = dataset.iterator();
  while (stage(iterator->report(), name).threads != threads && iterator->next()) {
  }
  return iterator->report();
}

TEST(Autotune, ReportsWhatItChose) {
  const PipelineReport report = report_with(numbers(30000)
                                                .map(slow, {.parallel = AUTOTUNE, .name = "slow"})
                                                .batch(8)
                                                .prefetch(AUTOTUNE)
                                                .with_budget({.cores = 2}),
                                            "map slow", 2);
  EXPECT_EQ(stage(report, "map slow").threads, 2) << report.text();
  EXPECT_TRUE(contains(report.text(), "map slow chose 2 threads")) << report.text();
}

// An interleave of data sets whose elements are slow to compute, with a simulated consumer: the
// test decides how long that waited.
class TunedInterleave {
 public:
  explicit TunedInterleave(int parallel, int cores, int begin_with = 1)
      : dataset_(Dataset::range(4).interleave(
            [](const Element&) {
              return numbers(kEach).map(slow, {.spec = {{DType::I64, {}}}});
            },
            {.cycle = 4, .parallel = parallel})),
        runtime_(std::make_shared<Runtime>(Budget{.cores = cores, .memory_bytes = 1 << 20}, host(),
                                           nullptr)),
        stage_(runtime_->stage(*dataset_.node())) {
    stage_.threads = begin_with;
    input_ = std::make_unique<Input>(
        dataset_.node(), Context{.epoch = 0, .shard = 0, .shards = 1, .runtime = runtime_});
  }

  // Takes elements, calling `between` after each, until a condition holds or the data ends. Checks
  // that the order does not depend on the number of threads.
  template <class Condition, class Between>
  void take_until(Condition holds, Between between) {
    while (!holds()) {
      const std::optional<Element> element = input_->next();
      if (!element) return;
      EXPECT_EQ(element->front().item(), static_cast<double>(taken_ / 4));
      ++taken_;
      most_ = std::max(most_, stage_.threads.load());
      between(*element);
    }
  }
  auto threads_are(int count) {
    return [this, count] { return stage_.threads == count; };
  }
  auto more_were_taken(std::int64_t count) {
    return [this, end = taken_ + count] { return taken_ == end; };
  }
  auto waiting() {
    return [this](const Element&) {
      runtime_->consumer_wait.begin(0);
      runtime_->consumer_wait.end(1'000'000'000);
    };
  }

  static constexpr std::int64_t kEach = 5000;
  Dataset dataset_;
  std::shared_ptr<Runtime> runtime_;
  Stage& stage_;
  std::unique_ptr<Input> input_;
  std::int64_t taken_ = 0;
  int most_ = 0;  // threads
};

TEST(Autotune, InterleaveGetsThreadsWhileTheConsumerWaits) {
  TunedInterleave tuned(AUTOTUNE, 2);
  tuned.take_until(tuned.threads_are(2), tuned.waiting());
  EXPECT_EQ(tuned.stage_.threads, 2);
  ASSERT_FALSE(tuned.stage_.decisions().empty());
  EXPECT_TRUE(contains(tuned.stage_.decisions().back(), "2 threads: the consumer waited"))
      << tuned.stage_.decisions().back();
  tuned.take_until(tuned.more_were_taken(1000), tuned.waiting());
  EXPECT_EQ(tuned.most_, 2);  // there are no more cores
}

TEST(Autotune, InterleaveStaysSmallForAConsumerThatDoesNotWait) {
  TunedInterleave tuned(AUTOTUNE, 3);
  const auto it_looked = [&] { return !tuned.stage_.decisions().empty(); };
  tuned.take_until(it_looked, [](const Element&) {});
  tuned.take_until(tuned.more_were_taken(1000), [](const Element&) {});
  EXPECT_EQ(tuned.most_, 1);
  ASSERT_EQ(tuned.stage_.decisions().size(), 1u);
  EXPECT_TRUE(contains(tuned.stage_.decisions()[0], "1 thread: the consumer waited 0%"))
      << tuned.stage_.decisions()[0];
}

TEST(Autotune, InterleaveReleasesThreadsThatAreNotNeeded) {
  TunedInterleave tuned(AUTOTUNE, 3, 3);
  // The consumer needs longer for each element than computing one takes.
  tuned.take_until(tuned.threads_are(1), [](const Element& element) {
    for (int i = 0; i < 5; ++i) slow(element);
  });
  EXPECT_EQ(tuned.stage_.threads, 1);
  EXPECT_EQ(tuned.most_, 3);
  ASSERT_FALSE(tuned.stage_.decisions().empty());
  EXPECT_TRUE(contains(tuned.stage_.decisions().back(), "1 thread: the consumer takes"))
      << tuned.stage_.decisions().back();
}

TEST(Autotune, InterleaveKeepsAGivenNumberOfThreads) {
  TunedInterleave tuned(2, 3);
  tuned.take_until(tuned.more_were_taken(1000), tuned.waiting());
  EXPECT_EQ(tuned.taken_, 1000);
  EXPECT_EQ(tuned.most_, 2);
  EXPECT_TRUE(tuned.stage_.decisions().empty());
}

TEST(Autotune, InterleaveReportsWhatItChose) {
  const PipelineReport report =
      report_with(Dataset::range(4)
                      .interleave(
                          [](const Element&) {
                            return numbers(5000).map(slow, {.spec = {{DType::I64, {}}}});
                          },
                          {.parallel = AUTOTUNE})
                      .with_budget({.cores = 2}),
                  "interleave", 2);
  EXPECT_EQ(stage(report, "interleave").threads, 2) << report.text();
  EXPECT_TRUE(contains(report.text(), "interleave chose 2 threads: the consumer waited"))
      << report.text();
}

}  // namespace
}  // namespace lockstep
