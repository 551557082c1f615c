// What the engine needs on a phone: native libraries, and how hot and how full the phone is.
plugins {
    alias(libs.plugins.android.library)
}

android {
    namespace = "org.omnidraft.android"
    compileSdk = libs.versions.compileSdk.get().toInt()

    defaultConfig {
        minSdk = libs.versions.minSdk.get().toInt()
        ndk {
            abiFilters += listOf("arm64-v8a", "x86_64")
        }
        externalNativeBuild {
            cmake {
                targets += listOf("omnidraft_ops", "omnidraft_jni")
                arguments += listOf(
                    "-DOMNIDRAFT_OPS=ON",
                    "-DOMNIDRAFT_JNI=ON",
                    "-DANDROID_STL=c++_static",
                    // A debug build of the app, too, has fast kernels.
                    "-DCMAKE_BUILD_TYPE=Release",
                    "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-z,max-page-size=16384",
                )
            }
        }
    }

    externalNativeBuild {
        cmake {
            path = file("../../CMakeLists.txt")
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

dependencies {
    api(project(":engine"))
    implementation(libs.onnxruntime.android)
    implementation(libs.tokenizers)
    runtimeOnly(libs.tokenizers.android)
}
