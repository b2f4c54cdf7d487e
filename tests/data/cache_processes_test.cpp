// Several processes with one file cache: the first writes it, the others compute their elements
// themselves until it is complete, and none ever sees a partial file.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>

#include "data/positions.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

// A forked process and a socket to it. Its data sets must not use stages with threads, because fork
// does not copy threads.
class OtherProcess {
 public:
  // `body` runs in the other process and returns whether its checks passed.
  explicit OtherProcess(const std::function<bool(OtherProcess&)>& body) {
    std::array<int, 2> ends;
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) std::abort();
    id_ = ::fork();
    if (id_ < 0) std::abort();
    line_ = ends[id_ == 0 ? 0 : 1];
    ::close(ends[id_ == 0 ? 1 : 0]);
    if (id_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // do not outlive a test that is killed
    int status = 2;
    try {
      status = body(*this) ? 0 : 1;
    } catch (...) {
    }
    ::_exit(status);
  }
  ~OtherProcess() {
    ::close(line_);  // unblocks hear() at the other end
    if (!ended_) end();
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  // Wakes the other side; hear() waits for that, and is false if the other process has ended.
  void say() const { ::send(line_, "x", 1, MSG_NOSIGNAL); }
  bool hear() const {
    char word;
    return ::recv(line_, &word, 1, 0) == 1;
  }
  void kill() const { ::kill(id_, SIGKILL); }
  // Waits for the process to end; true if its checks passed.
  bool end() {
    int status = 0;
    ended_ = true;
    return ::waitpid(id_, &status, 0) == id_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t id_ = -1;
  int line_ = -1;
  bool ended_ = false;
};

constexpr std::int64_t kCount = 40;

Dataset counted(int& made) {
  return Dataset::range(kCount).map(
      [&made](const Element& element) {
        ++made;
        return Element{Tensor::scalar(element[0].values<std::int64_t>()[0] * 3)};
      },
      {.spec = {{DType::I64, {}}}});
}

bool is_right(const std::vector<Element>& elements) {
  std::vector<std::int64_t> expected = count_up(kCount);
  for (std::int64_t& number : expected) number *= 3;
  return numbers_of(elements) == expected;
}

// Begins a pass over the cache, says so after three elements, and continues when it is told to.
bool fill_in_two_steps(const std::filesystem::path& file, OtherProcess& parent) {
  int made = 0;
  const Dataset dataset = counted(made).cache(file);
  const auto iterator = dataset.iterator();
  std::vector<Element> elements = rest_of(*iterator, 3);
  parent.say();
  if (!parent.hear()) return false;
  for (Element& element : rest_of(*iterator)) elements.push_back(std::move(element));
  return is_right(elements) && made == kCount;
}

TEST(FileCacheOfProcesses, OneWritesItAndTheOtherComputesUntilItIsComplete) {
  TemporaryFolder folder;
  const std::filesystem::path file = folder / "cache";
  OtherProcess other([&](OtherProcess& parent) { return fill_in_two_steps(file, parent); });
  ASSERT_TRUE(other.hear());

  int made = 0;
  const Dataset dataset = counted(made).cache(file);
  EXPECT_TRUE(is_right(all_of(dataset)));
  EXPECT_EQ(made, kCount);
  EXPECT_FALSE(std::filesystem::exists(file));

  // A pass that began without the cache ends without it.
  const auto iterator = dataset.iterator();
  std::vector<Element> elements = rest_of(*iterator, 5);
  other.say();
  ASSERT_TRUE(other.end());
  EXPECT_TRUE(std::filesystem::exists(file));
  for (Element& element : rest_of(*iterator)) elements.push_back(std::move(element));
  EXPECT_TRUE(is_right(elements));
  EXPECT_EQ(made, 2 * kCount);

  EXPECT_TRUE(is_right(all_of(dataset)));
  EXPECT_EQ(made, 2 * kCount);
  EXPECT_EQ(folder.files(), 1u);
}

TEST(FileCacheOfProcesses, IfTheWriterDiesTheNextPassWritesIt) {
  TemporaryFolder folder;
  const std::filesystem::path file = folder / "cache";
  OtherProcess other([&](OtherProcess& parent) { return fill_in_two_steps(file, parent); });
  ASSERT_TRUE(other.hear());
  other.kill();
  EXPECT_FALSE(other.end());
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(folder.files(), 1u);  // the unfinished file

  int made = 0;
  const Dataset dataset = counted(made).cache(file);
  for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(is_right(all_of(dataset)));
  EXPECT_EQ(made, kCount);
  EXPECT_EQ(folder.files(), 1u);
}

// All start at the same time, so that any of them may be the first.
TEST(FileCacheOfProcesses, ManyAtOnceReadTheSame) {
  for (int round = 0; round < 5; ++round) {
    TemporaryFolder folder;
    const std::filesystem::path file = folder / "cache";
    std::vector<std::unique_ptr<OtherProcess>> others;
    for (int i = 0; i < 4; ++i) {
      others.push_back(std::make_unique<OtherProcess>([&](OtherProcess& parent) {
        int made = 0;
        const Dataset dataset = counted(made).cache(file);
        parent.say();
        if (!parent.hear()) return false;
        for (int pass = 0; pass < 4; ++pass) {
          if (!is_right(all_of(dataset))) return false;
        }
        return true;
      }));
    }
    for (const auto& other : others) ASSERT_TRUE(other->hear());
    for (const auto& other : others) other->say();
    for (const auto& other : others) EXPECT_TRUE(other->end());
    int made = 0;
    EXPECT_TRUE(is_right(all_of(counted(made).cache(file))));
    EXPECT_EQ(made, 0);
    EXPECT_EQ(folder.files(), 1u);
  }
}

}  // namespace
}  // namespace lockstep
