// The page in a real browser, from a file and without a network.
#include <gtest/gtest.h>

#include <fstream>

#include "explain/browser.h"
#include "explain/sample_page.h"

namespace lockstep::testing {
namespace {

class PageInBrowser : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = find_browser();
    if (!program_) GTEST_SKIP() << "no chromium is installed (Debian: chromium)";
  }
  std::string write(const PageContents& contents) const {
    const std::filesystem::path file = folder_ / "page.html";
    std::ofstream(file) << page_html(contents);
    return "file://" + file.string();
  }

  std::optional<std::string> program_;
  TemporaryFolder folder_;
};

constexpr const char* kBackground =
    "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    ".reduce((a, b) => a + b)";

TEST_F(PageInBrowser, FitsEveryScreenInLightAndDarkAndAsksForNothing) {
  Browser browser(*program_);
  PageContents contents = sample_page();
  const std::string wide(200, 'x');
  contents.replicas[1].name = wide;  // without a place to break
  contents.explanation->advice[0].command += " --run-dir " + wide;
  contents.timeline->tracks[1].name = wide;
  contents.charts[0].curves[1].name = wide;
  const std::string url = write(contents);
  for (const int width : {320, 360, 768, 1440}) {
    for (const bool dark : {false, true}) {
      SCOPED_TRACE(::testing::Message() << width << (dark ? " dark" : " light"));
      browser.open(url, {.width = width, .height = 800, .phone = width < 500, .dark = dark});
      EXPECT_LE(browser.evaluate("document.documentElement.scrollWidth").get<int>(), width);
      EXPECT_EQ(browser.evaluate("window.innerWidth"), width);
      EXPECT_TRUE(browser.complaints().empty()) << browser.complaints().front();
      for (const std::string& request : browser.requests()) {
        EXPECT_TRUE(request == url || request.starts_with("data:")) << request;
      }
      EXPECT_FALSE(browser.requests().empty());
      const int background = browser.evaluate(kBackground);
      EXPECT_TRUE(dark ? background < 200 : background > 600) << background;
    }
  }
}

TEST_F(PageInBrowser, HasItsFiguresWithTheirNumbers) {
  Browser browser(*program_);
  browser.open(write(sample_page()), {.width = 360, .height = 800, .phone = true});
  const auto text_of = [&](const std::string& selector) {
    return browser.evaluate("document.querySelector('" + selector + "').textContent")
        .get<std::string>();
  };
  EXPECT_NE(text_of("#waterfall").find("communication bandwidth"), std::string::npos);
  EXPECT_NE(text_of("#waterfall figcaption").find("= 60.0%"), std::string::npos);
  EXPECT_NE(text_of("#speed-up").find("On 8 replicas"), std::string::npos);
  EXPECT_NE(text_of("#noise").find("likely"), std::string::npos);
  // The bars of the waterfall begin where the one before ends, on the screen.
  const nlohmann::json ends = browser.evaluate(
      "[...document.querySelectorAll('.waterfall rect')].map(r => "
      "{const b = r.getBoundingClientRect(); return [b.left, b.right]})");
  ASSERT_EQ(ends.size(), 6u);
  for (std::size_t i = 1; i + 1 < ends.size(); ++i) {
    const double before = ends[i - 1][i == 1 ? 1 : 0];
    EXPECT_NEAR(ends[i][1].get<double>(), before, 1.0) << i;
  }
  EXPECT_NEAR(ends[5][1].get<double>(), ends[4][0].get<double>(), 1.0);
  // Everything that is drawn has a size, and every figure a description.
  EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('svg')].filter(s => "
                             "s.getBoundingClientRect().width < 100).length"),
            0);
  EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('figure')].filter(f => !document"
                             ".getElementById(f.getAttribute('aria-describedby'))"
                             ".textContent).length"),
            0);
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('.command button').length"), 1);
  browser.evaluate(
      "document.querySelector('.timeline rect').dispatchEvent(new Event('click', {bubbles: "
      "true}))");
  EXPECT_NE(text_of("output.span").find("dense_0"), std::string::npos);
}

TEST_F(PageInBrowser, ANameThatIsAScriptDoesNotRun) {
  Browser browser(*program_);
  PageContents contents = sample_page();
  const std::string evil = "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'>";
  contents.title = contents.explanation->lost[0].where = evil;
  contents.timeline->tracks[0].spans[0].name = contents.memory->peak[0].layer = evil;
  contents.charts[0].curves[0].name = contents.charts[0].title = contents.input[0].name = evil;
  browser.open(write(contents), {});
  EXPECT_EQ(browser.evaluate("String(window.ran)"), "undefined");
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('script, img').length"), 1);
  EXPECT_EQ(browser.evaluate("document.querySelector('h1').textContent"), evil);
  EXPECT_TRUE(browser.complaints().empty());
}

}  // namespace
}  // namespace lockstep::testing
